"""QLoRA under DDP and FSDP on two gloo ranks: the losses of one process, and an adapter that can be saved."""

from pathlib import Path

import pytest

from workshop import launch

PROGRAM = Path(__file__).parent / "programs" / "qlora_ranks.py"


@pytest.fixture(scope="module")
def ran(loaded_engine):
    return launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=115))


@pytest.mark.parametrize(
    ("way", "alone"),
    [("ddp hand", "hand"), ("ddp bitsandbytes", "bitsandbytes"), ("fsdp bitsandbytes", "bitsandbytes")],
)
def test_losses_of_one_process(ran, way, alone):
    for rank in range(2):
        expected = ran[rank].losses[f"alone {alone}"]
        assert expected[-1] < expected[0] - 1e-3
        assert max(abs(a - b) for a, b in zip(ran[rank].losses[way], expected, strict=True)) < 1e-4


def test_the_packed_weights_are_sharded(ran):
    is_sharded, local, whole = ran[0].sharded
    assert is_sharded
    assert local * 2 == whole


def test_pefts_own_adapter_is_empty_and_ours_is_not(ran):
    """If peft's is no longer empty the trap is gone, and the lecture in `methods` has to say so."""
    assert ran[0].pefts_own == 0
    assert len(ran[0].ours) == 8
    assert ran[0].ours["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"] == [4, 64]


def test_it_learns_under_recompute(ran):
    losses = ran[0].losses["fsdp peft, recompute"]
    assert losses[-1] < losses[0] - 1e-3
