"""Layouts: ranks and coordinates, groups, stages, and why a layout cannot be."""

import re

import pytest

from workshop.facts import catalogue
from workshop.facts.checks import divisors, nearest_divisor
from workshop.facts.fitting import problems, ulysses_problems
from workshop.facts.layout import Layout
from workshop.facts.stages import chunks, stage_layers

WIDE = Layout(tensor=2, context=3, shard=2, replicate=2, pipeline=5)


def test_ranks_and_coordinates_are_inverse():
    assert WIDE.world_size == 120
    for rank in range(WIDE.world_size):
        assert WIDE.rank_of(WIDE.coordinates(rank)) == rank


def test_tensor_is_innermost_and_pipeline_outermost():
    assert WIDE.group(0, "tensor") == (0, 1)
    assert WIDE.group(0, "context") == (0, 2, 4)
    assert WIDE.group(0, "pipeline") == (0, 24, 48, 72, 96)


def test_groups_of_an_axis_are_a_partition():
    for axes in (("tensor",), ("shard", "replicate"), ("context", "shard")):
        groups = {WIDE.group(rank, *axes) for rank in range(WIDE.world_size)}
        assert sorted(rank for group in groups for rank in group) == list(range(WIDE.world_size))


def test_virtual_stages_are_dealt_round():
    layout = Layout(pipeline=4, virtual_stages=3)
    assert layout.schedule == "interleaved"
    assert stage_layers(12, layout, 1) == [[1], [5], [9]]


def test_uneven_stages():
    layout = Layout(pipeline=4, first_stage_layers=2, last_stage_layers=2)
    assert chunks(12, layout) == [2, 4, 4, 2]
    assert chunks(6, Layout(pipeline=4, virtual_stages=2, embedding_in_stages=True)) == [
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
    ]
    assert chunks(10, Layout(pipeline=4)) == [3, 3, 2, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor": 0}, "layout: tensor must be a whole number of at least 1, not 0"),
        ({"zero": 4}, "unknown zero stage 4"),
        ({"schedule": "1f2b"}, "did you mean '1f1b'"),
        ({"recompute": "ful"}, "did you mean 'full'"),
        ({"precision": "megatron-bf8"}, "did you mean 'megatron-fp8'"),
        ({"virtual_stages": 2}, "virtual_stages = 2 needs pipeline of at least 2"),
        ({"expert": 3, "shard": 4}, "4 ranks, which do not divide by expert = 3 times expert_tensor = 1"),
    ],
)
def test_impossible_layouts_say_why(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Layout(**fields)


def test_a_rank_outside_the_world():
    with pytest.raises(ValueError, match="rank 120 is not in a world of 120"):
        WIDE.coordinates(120)
    with pytest.raises(ValueError, match="tensor = 2 is not on an axis of 2"):
        WIDE.rank_of({"tensor": 2})


def found(layout, model="llama-3.1-8b", cluster="8xH100", seq_len=4096):
    return problems(catalogue.model(model), catalogue.cluster(cluster), layout, seq_len)


def test_a_good_layout_has_no_problem():
    assert found(Layout(shard=4, tensor=2, zero=3)) == []


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            Layout(tensor=3, shard=1),
            "num_heads = 32 does not divide by tensor = 3; the nearest that would do is tensor = 2",
        ),
        (Layout(shard=4), "4 ranks, but 8xH100 has 8 devices"),
        (
            Layout(pipeline=64),
            "needs 64 layers, and llama-3.1-8b has 32; the most that would do is pipeline = 32",
        ),
        (Layout(expert=8, shard=8), "expert = 8, but llama-3.1-8b has no experts; use expert = 1"),
    ],
)
def test_every_problem_names_values_and_a_way_out(layout, words):
    assert any(words in sentence for sentence in found(layout)), found(layout)


def test_sequences_must_divide():
    words = (
        "seq_len = 4100 does not divide into 2 x context = 8 pieces; the nearest that would do is context = 5"
    )
    assert any(words in sentence for sentence in found(Layout(context=4, shard=2), seq_len=4100))
    layout = Layout(tensor=8, sequence_parallel=True)
    assert any("seq_len on a context rank = 4100" in sentence for sentence in found(layout, seq_len=4100))


def test_learned_positions_end():
    assert any("1024 learned positions" in s for s in found(Layout(shard=8), model="gpt2", seq_len=2048))


def test_experts_must_divide():
    layout = Layout(expert=6, shard=6)
    assert any(
        "num_experts = 8 does not divide by expert = 6" in s
        for s in found(layout, model="mixtral-8x7b", cluster="6xH100")
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "beginning"),
    [
        (32, 8, 4, ""),
        (32, 8, 16, ""),  # a key head goes to two ranks
        (4, 1, 16, "4 query heads do not divide by 16 ranks: Ulysses "),
        (32, 8, 3, "32 query heads do not divide by 3 ranks: Ulysses cuts heads. "),
        (12, 4, 6, "4 key and value heads and 6 ranks: one must divide the other"),
    ],
)
def test_why_ranks_cannot_trade_heads(heads, kv_heads, ranks, beginning):
    problems_of_ulysses = ulysses_problems(heads, kv_heads, ranks)
    assert len(problems_of_ulysses) == bool(beginning)
    assert all(problem.startswith(beginning) for problem in problems_of_ulysses)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            Layout(pipeline=4, shard=2, first_stage_layers=20, last_stage_layers=20),
            "40 of llama-3.1-8b's 32 layers leave 0 for 2 other stages, and each needs one; name at most 30",
        ),
        (
            Layout(pipeline=8, first_stage_layers=40),
            "first_stage_layers = 40: 40 of llama-3.1-8b's 32 layers",
        ),
        (
            Layout(pipeline=2, shard=4, first_stage_layers=3, last_stage_layers=3),
            "are 6 layers, but the two stages hold all 32 of llama-3.1-8b; give one of them",
        ),
        (
            Layout(shard=8, recompute="selective", recompute_modules=("router",)),
            "names 'router', which llama",
        ),
    ],
)
def test_what_a_stage_or_a_module_lacks_is_refused(layout, words):
    assert any(words in sentence for sentence in found(layout)), found(layout)


def test_uneven_stages_that_hold_all_layers_can_run():
    assert found(Layout(pipeline=4, shard=2, first_stage_layers=7)) == []
    assert found(Layout(pipeline=2, shard=4, first_stage_layers=15, last_stage_layers=17)) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"last_stage_layers": 1}, "last_stage_layers = 1 needs pipeline of at least 2"),
        ({"embedding_in_stages": True}, "embedding_in_stages = True needs pipeline of at least 2"),
        (
            {"schedule": "dualpipe"},
            "'dualpipe' folds a pipeline and needs pipeline of at least 2; use '1f1b'",
        ),
        ({"schedule": "zbv"}, "'zbv' folds a pipeline and needs pipeline of at least 2; use '1f1b'"),
        ({"pipeline": 2, "embedding_in_stages": True, "last_stage_layers": 3}, "give either"),
        ({"zero": 3, "replicate": 8}, "shard = 1 is no division; use shard = 8 instead of replicate = 8"),
        ({"recompute": "full", "recompute_modules": ("mlp",)}, "needs recompute = 'selective', not 'full'"),
        ({"recompute_modules": ("mlp",)}, "needs recompute = 'selective', not 'none'"),
        ({"sequence_parallel": "no"}, "layout: sequence_parallel must be true or false, not 'no'"),
        ({"zero": True}, "layout: zero must be a whole number, not True"),
        ({"zero": 3.0}, "layout: zero must be a whole number, not 3.0"),
        ({"zero": "3"}, "unknown zero stage '3' (known: 0, 1, 2, 3)"),
    ],
)
def test_settings_without_a_meaning_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Layout(**fields)


@pytest.mark.parametrize("cut", [3, 7])
def test_experts_are_cut_over_ranks_that_are_there(cut):
    words = f"which do not divide by expert = 1 times expert_tensor = {cut}; expert_tensor = 0 cuts"
    layout = Layout(shard=8, zero=3, expert_tensor=cut)
    assert any(words in sentence for sentence in found(layout, model="mixtral-8x7b"))


def test_divisors_are_found_by_their_partners():
    assert all(
        divisors(n) == [d for d in range(1, n + 1) if n % d == 0] and nearest_divisor(n, 5) in divisors(n)
        for n in range(1, 300)
    )
    assert len(divisors(10**12)) == 13 * 13  # 2^12 5^12; counting up to it would take a day
    assert (nearest_divisor(12, 5), nearest_divisor(6, 40), nearest_divisor(10**9 + 1, 5)) == (4, 6, 7)
