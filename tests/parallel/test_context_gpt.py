"""A GPT with its sequence cut over real gloo ranks: one process's loss and gradients, and what it refuses."""

from functools import cache
from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "context_gpt_equal.py"
WAYS = [
    f"{way} tied={tied}"
    for way in ("ring zigzag", "ring contiguous", "ulysses contiguous")
    for tied in (False, True)
]


@cache
def launched(n):
    return launch.torchrun(launch.Script(PROGRAM), n, limits=launch.Limits(timeout=90))


@pytest.fixture(params=[2, 4])
def ranks(request):
    return launched(request.param)


@pytest.fixture
def four():
    return launched(4)


def check(found, parameters):
    assert found["loss"] < 1e-5
    assert {name: error for name, error in found["gradients"].items() if not error < 1e-5} == {}
    assert len(found["gradients"]) == parameters
    assert found["same_names"]


@pytest.mark.parametrize("way", WAYS)
def test_loss_and_every_gradient_are_those_of_one_process(ranks, way):
    for rank in range(len(ranks)):
        check(ranks[rank][way], 9 * 2 + (2 if "True" in way else 3))


@pytest.mark.parametrize("case", ["recomputed", "one_key_head"])
def test_with_recompute_and_with_fewer_key_heads_than_ranks(ranks, case):
    for rank in range(len(ranks)):
        check(ranks[rank][case], 9 * 2 + 3)


def test_pairs_of_ranks_inside_a_larger_world(four):
    for rank in range(4):
        for found in four[rank].pairs:
            check(found, 9 * 2 + 3)


def test_matrices_cut_over_one_axis_and_the_sequence_over_another(four):
    for rank in range(4):
        errors = four[rank].with_tensor
        assert {name: error for name, error in errors.items() if not error < 1e-5} == {}
        assert len(errors) == 2 * (1 + 9 * 2 + 3)


def test_only_attention_sends_anything(ranks):
    """Two layers of keys and values round the ring, forward and backward: nothing else in the model talks."""
    n, head = len(ranks), 2 * 32 * 8 * 4  # bytes of one head of the whole batch
    kv_bytes = 2 * 2 * head // n
    assert ranks[0]["ring zigzag tied=False"]["wire"] == {"send": 2 * 3 * (n - 1) * kv_bytes, "recv": 0}
    kv_heads = max(2, n)  # with four ranks and two key heads, each goes to two ranks
    held = (4 + kv_heads + kv_heads + 4) * head // n
    wire = ranks[0]["ulysses contiguous tied=False"]["wire"]
    assert wire == {"all_to_all": 2 * 2 * held * (n - 1) // n}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("heads", "1 query heads do not divide by {n} ranks: Ulysses cuts heads. Use a ring."),
        (
            "zigzag",
            "a sequence of {long} does not divide into {parts} parts (zigzag, {n} ranks); {parts} or {next}",
        ),
        ("plain", "a sequence of {long} does not divide into {n} parts (contiguous, {n} ranks); "),
        ("odd", "a sequence of {odd} does not divide into {parts} parts (zigzag, {n} ranks); "),
        ("method", "unknown method 'spiral' (known: 'ring', 'ulysses', 'torch')"),
        ("order", "order 'zigzag': ulysses wants its positions 'contiguous'; only the ring takes others"),
        ("no_gpt", "a Linear has no attention as workshop.models.gpt's: cut a GPT"),
        (
            "torch",
            "method 'torch' on 'cpu': torch.distributed.tensor has no sharding rule for the CPU's atten",
        ),
        (
            "torch_call",
            "method 'torch' on 'cpu': torch.distributed.tensor has no sharding rule for the CPU's",
        ),
        ("shared", "3 query heads cannot share 2 key and value heads evenly"),
    ],
)
def test_what_cannot_be_cut_is_told_before_anything_is_sent(ranks, case, said):
    n = len(ranks)
    numbers = {"n": n, "parts": 2 * n, "long": 2 * n + 1, "next": 4 * n, "odd": 3 * n}
    for rank in range(n):
        text, sent = ranks[rank].said[case]
        assert text.startswith(said.format(**numbers)), text
        assert sent == 0
