"""FSDP by hand and by torch: every choice gives the single process's losses, and moves what it should."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "fsdp_equal.py"
LAYERS = 2


@pytest.fixture(scope="module")
def ran():
    return launch.torchrun(launch.Script(PROGRAM), 4, limits=launch.Limits(timeout=115))


def test_every_choice_gives_the_single_process(ran):
    for rank in range(4):
        for name, difference in ran[rank].differences.items():
            assert difference < (0.05 if "bf16" in name else 1e-5), (name, rank, difference)
        assert ran[rank].differences["bf16"] > 1e-5  # it really was bf16
        assert ran[rank].differences["by hand, bf16"] > 1e-5


def test_gathers_by_wrap(ran):
    gathers = {name: calls["all_gather"][0] for name, calls in ran[0].traffic.items()}
    assert gathers["by hand"] == 2 * (LAYERS + 1)  # the root is gathered again for backward
    assert gathers["layers"] == gathers["prefetch"] == 2 * LAYERS + 1
    assert gathers["root"] == 1
    assert gathers["every linear"] == 2 * 7 * LAYERS + 1  # the tied head is the root's
    assert gathers["a function"] == 2 * 2 * LAYERS + 1
    assert gathers["keep"] == LAYERS + 1


def test_bytes_by_choice(ran):
    moved = {name: calls["all_gather"][1] for name, calls in ran[0].traffic.items()}
    assert moved["bf16"] * 2 == moved["layers"]
    assert moved["keep"] == moved["root"] < moved["layers"] < 2 * moved["root"]
    assert "all_reduce" in ran[0].traffic["hybrid"]  # between replicas


def test_a_model_on_meta_is_that_of_rank_0(ran):
    for rank in range(4):
        assert ran[rank].on_meta == (True, 1.0, 1.0)  # tied still


def test_what_it_says(ran):
    choice, precision, bf16, wrap, prefetch = ran[0].told
    assert "prefetc" in choice
    assert "prefetch" in choice
    assert "fsdp-bf16" in precision
    assert "call model.to(torch.bfloat16) first" in bf16
    assert "layers" in wrap
    assert "prefetch" in prefetch


def test_it_is_quiet(ran):
    assert ran.text == ""
