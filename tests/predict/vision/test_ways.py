"""The planner of vision models: seconds by hand, bytes by hand, refusals, and the best of every kind."""

import pytest

from workshop.facts.device import LinkSpec
from workshop.facts.layout import Layout
from workshop.facts.vision import ViTSpec
from workshop.predict.vision import pieces
from workshop.predict.vision.ways import Profile, VisionSetting, Way, plan_vision, predict_way

SPEC = ViTSpec("vit", 4, 64, 4, patch_size=7, image_size=28, num_classes=10, channels=1)
LINK = LinkSpec("link", 1e9, 1e-4)
CUTS = (range(3), range(3, 6))


def setting(batch=8, cut=None):
    """Every piece: 1 ms forward and 2 ms backward for an image, nothing fixed; 1 ns a parameter to step."""
    six = (((0.0, 0.0),) * 6, ((1e-3, 2e-3),) * 6)
    return VisionSetting(SPEC, Profile(*six, 1e-9, cut), LINK, batch)


def test_data_parallel_is_half_the_images_and_an_all_reduce():
    found = predict_way(setting(), Way(Layout(replicate=2)))
    assert found.causes["compute"] == pytest.approx(6 * 4 * 3e-3)
    assert found.causes["data"] == pytest.approx(1e-4 + 4 * SPEC.num_params / 1e9)
    assert found.causes["optimizer"] == pytest.approx(1e-9 * SPEC.num_params)
    assert found.seconds == pytest.approx(sum(found.causes.values()))


def test_zero_sends_and_steps_as_it_should():
    once = 1e-4 + 2 * SPEC.num_params / 1e9  # half of 4 bytes a parameter
    # (stage, micro-batches): as parallel/zero.py sends; stage 1 reduces once a step, 2 and 3 every micro-batch
    passes = {(1, 1): 2, (2, 1): 2, (3, 1): 3, (1, 4): 2, (2, 4): 4 + 1, (3, 4): 3 * 4}
    for (stage, micro_batches), times in passes.items():
        found = predict_way(setting(), Way(Layout(shard=2, zero=stage), micro_batches))
        assert found.causes["data"] == pytest.approx(times * once)
        assert found.causes["optimizer"] == pytest.approx(1e-9 * SPEC.num_params / 2)


def test_a_collective_that_was_measured_by_itself_counts_by_its_own_rate():
    slow = LinkSpec("reduce_scatter", 5e8, 2e-4)
    apart = VisionSetting(SPEC, setting().profile, LINK, 8, {"reduce_scatter": slow})
    found = predict_way(apart, Way(Layout(shard=2, zero=2)))
    sent = 2 * SPEC.num_params
    assert found.causes["data"] == pytest.approx(2e-4 + sent / 5e8 + 1e-4 + sent / 1e9)
    data = Way(Layout(replicate=2))
    assert predict_way(apart, data).seconds == predict_way(setting(), data).seconds


def test_tensor_parallel_cuts_what_the_plan_cuts():
    found = predict_way(setting(), Way(Layout(tensor=2)))
    assert found.causes["compute"] == pytest.approx(
        (2 * 8 + 4 * 4) * 3e-3
    )  # two ends whole, four layers halved
    message = 4 * 8 * SPEC.num_tokens * 64
    assert found.causes["tensor"] == pytest.approx(4 * 4 * (1e-4 + message / 1e9))


def test_a_profile_of_cut_pieces_is_looked_up():
    cut = Profile(((0.0, 0.0),) * 6, ((5e-3, 5e-3),) * 6, 0.0)
    found = predict_way(setting(cut=cut), Way(Layout(tensor=2)))
    assert found.causes["compute"] == pytest.approx(6 * 8 * 10e-3)
    assert found.causes["tensor"] == 0
    assert predict_way(setting(cut=cut), Way(Layout(replicate=2))).causes["compute"] == pytest.approx(0.072)


def test_a_pipeline_waits_for_its_bubble():
    found = predict_way(setting(), Way(Layout(pipeline=2, schedule="gpipe"), 4, CUTS))
    stage = 3 * 2 * 3e-3  # three pieces, two images
    assert found.causes["compute"] == pytest.approx(4 * stage)
    assert found.causes["bubble"] > stage


def test_memory_is_state_and_what_is_kept():
    state = 16 * SPEC.num_params
    kept = 4 * 4 * sum(piece.kept for piece in pieces(SPEC))
    data = predict_way(setting(), Way(Layout(replicate=2))).memory_bytes
    assert state + kept < data < state + 1.3 * kept
    half = predict_way(setting(), Way(Layout(replicate=2), 2)).memory_bytes
    # DDP has what `no_sync` adds up beside its buckets (measured: 75.4 MiB where 61.1 would do without)
    assert half == pytest.approx(data - kept / 2 + 4 * SPEC.num_params, rel=0.05)
    sharded = predict_way(setting(), Way(Layout(shard=2, zero=3))).memory_bytes
    assert sharded < data
    # Two micro-batches: all are in flight, or all gradients are there, but never both at once.
    stages = [[pieces(SPEC)[number] for number in cut] for cut in CUTS]
    both = max(sum(16 * piece.params + 4 * 8 * piece.kept for piece in stage) for stage in stages)
    assert predict_way(setting(), Way(Layout(pipeline=2), 2, CUTS)).memory_bytes < both
    early = predict_way(setting(), Way(Layout(pipeline=2, schedule="gpipe"), 8, CUTS)).memory_bytes
    assert predict_way(setting(), Way(Layout(pipeline=2), 8, CUTS)).memory_bytes < early


def test_a_plan_has_the_best_of_every_kind_and_knows_the_cap():
    ways = [Way(Layout(replicate=2), m) for m in (1, 2)] + [Way(Layout(shard=2, zero=3), m) for m in (1, 2)]
    fits, too_large = plan_vision(setting(), ways)
    assert [one.way.layout.zero for one in fits] == [0, 3]
    assert [one.seconds for one in fits] == sorted(one.seconds for one in fits)
    assert not too_large
    slow = [Way(Layout(replicate=2)), Way(Layout(tensor=2)), Way(Layout(replicate=2), 4)]
    assert [str(one.way) for one in plan_vision(setting(), slow)[0]] == ["data parallel", "tensor 2"]
    least = min(predict_way(setting(), way).memory_bytes for way in ways[:2])
    fits, too_large = plan_vision(setting(), ways, cap=least - 1)
    assert [one.way.layout.zero for one in fits] == [3]
    assert [one.way.layout.zero for one in too_large] == [0]
    with pytest.raises(ValueError, match="nothing fits 1,000 bytes; the least is"):
        plan_vision(setting(), ways, cap=1000)


def test_a_profile_is_a_line_that_never_falls():
    found = Profile.of_two((2, [(1.0, 2.0), (3.0, 3.0)]), (4, [(2.0, 4.0), (1.0, 3.0)]), 0.0)
    assert found.seconds(0, 6) == (3.0, 6.0)
    assert found.seconds(1, 6) == (1.0, 3.0)
    with pytest.raises(ValueError, match="2 images are not more than 2"):
        Profile.of_two((2, []), (2, []), 0.0)


def test_what_is_not_planned_is_told():
    with pytest.raises(ValueError, match="one axis at a time"):
        Way(Layout(replicate=2, tensor=2))
    with pytest.raises(ValueError, match="pipeline 2 needs as many cuts, and has 0"):
        Way(Layout(pipeline=2))
