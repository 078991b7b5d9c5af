"""Layouts: ranks and coordinates, groups, stages, and why a layout cannot be."""

import re

import pytest

from workshop.facts import catalogue
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
