"""DDP by hand, in buckets and PyTorch's: equal to each other and to one process, and told when they cannot be."""

from pathlib import Path

import numpy as np
import pytest

from workshop import launch

PROGRAMS = Path(__file__).parent / "programs"
RANKS = 3  # a number that nothing divides by accident


def run(name, n):
    return launch.torchrun(launch.Script(PROGRAMS / name), n, limits=launch.Limits(timeout=90))


@pytest.fixture(scope="module")
def equal():
    return run("ddp_equal.py", RANKS)


def test_all_ways_give_the_single_process(equal):
    for rank in range(RANKS):
        for way, (losses, weights) in equal[rank].differences.items():
            assert losses < 1e-5, (way, rank)
            assert weights < 1e-5, (way, rank)


def test_ranks_began_apart_and_a_missing_broadcast_is_caught(equal):
    assert equal[0].seeded_apart > 0.01
    assert "the ranks hold different models" in equal[1].said
    assert "Did they begin alike (broadcast)" in equal[1].said


def test_buckets_are_those_of_pytorch(equal):
    assert equal[0].buckets == equal[0].torch_buckets
    assert len(equal[0].buckets) > 2


@pytest.fixture(scope="module")
def unused():
    return run("ddp_unused.py", 2)


def test_unused_parameters_are_told_in_words(unused):
    assert "rank 1: backward brought no gradient for never.weight, right.weight." in unused[1].told
    assert "unused='zeros'" in unused[0].told


def test_zeros_for_unused_parameters(unused):
    for rank in range(2):
        ours, theirs = unused[rank].zeros, unused[rank].torch_zeros
        assert ours["never"] is None if "never" in ours else ours["never.weight"] is None
        assert theirs["never.weight"] is None
        for name in ("first.weight", "left.weight", "right.weight"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6)
            np.testing.assert_array_equal(ours[name], unused[0].zeros[name])
    assert np.abs(unused[0].zeros["right.weight"]).max() > 0  # rank 0 never went right


def test_what_only_micro_batches_without_sync_used(unused):
    for rank in range(2):
        apart, never = unused[rank].accumulated_only
        assert apart == 0
        assert never is None


def test_the_step_after_an_error(unused):
    np.testing.assert_array_equal(unused[0].after_an_error, unused[1].after_an_error)


def test_buffers_follow_the_first_rank_as_in_pytorch(unused):
    for rank in range(2):
        np.testing.assert_allclose(unused[rank].batch_norm, unused[rank].torch_batch_norm, rtol=1e-6)


def test_buckets_are_sent_in_order_while_backward_goes_on(unused):
    told = [(what, bucket) for what, bucket, _ in unused[0].order]
    sent = [bucket for what, bucket in told if what == "sent"]
    assert sent == sorted(sent)
    assert len(sent) == 3
    last_gradient = max(place for place, (what, _) in enumerate(told) if what == "ready")
    assert told.index(("sent", 0)) < last_gradient
    assert [name for what, _, name in unused[0].order if what == "ready"] == [
        f"{n}.weight" for n in range(5, -1, -1)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hook": "fp17"}, "unknown hook 'fp17'; did you mean 'fp16'"),
        ({"hook": "sign", "rank": 2}, "unknown key 'rank' in the options of wrap_ddp(hook='sign')"),
        ({"hook": "none", "rank": 2}, "unknown key 'rank'"),
        ({"unused": "ignore"}, "unknown unused 'ignore'"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_sent(options, message):
    from torch import nn

    from workshop.parallel.ddp import wrap_ddp

    with pytest.raises(ValueError) as error:
        wrap_ddp(nn.Linear(1, 1), **options)
    assert message in str(error.value)


def test_nothing_to_train():
    from torch import nn

    from workshop.parallel.ddp import BucketedDDP

    with pytest.raises(ValueError, match="no parameter of this model has requires_grad=True"):
        BucketedDDP(nn.Identity())
    with pytest.raises(ValueError, match="unknown unused"):
        BucketedDDP(nn.Linear(1, 1), unused="guess")


def test_buckets_never_mix_types():
    import torch
    from torch import nn

    from workshop.parallel.ddp import fill_buckets

    kinds = [torch.float32, torch.bfloat16, torch.float32]
    parameters = [nn.Parameter(torch.zeros(10, dtype=kind)) for kind in kinds]
    assert [[p.dtype for p in bucket] for bucket in fill_buckets(parameters)] == [[kinds[0]] * 2, [kinds[1]]]
