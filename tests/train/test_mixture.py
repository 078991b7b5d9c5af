"""A run that names a mixture of experts trains: replicated and fully sharded; cut, it is refused."""

from math import log

import pytest

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory
from workshop.train import train

MIXTURE = ModelSpec(
    "mixture", 2, 32, 4, 256, num_kv_heads=2, num_experts=4, experts_per_token=2, moe_ffn_hidden_size=48
)


def run_of(**layout):
    return Run(MIXTURE, "this-machine", Layout(**layout, precision="fp32"), 4, 64)


@pytest.mark.parametrize("layout", [{"replicate": 2}, {"shard": 2, "zero": 3}], ids=["DDP", "FSDP2"])
def test_a_mixture_trains(layout):
    run = run_of(**layout)
    found = train(run, num_steps=8)
    assert found.losses[0] == pytest.approx(log(MIXTURE.vocab_size), rel=0.02)
    assert found.losses[-1] < found.losses[0]
    weights = [float(one.parts["weights"]) for one in found.ranks]
    assert weights == pytest.approx([float(predict_memory(run).parts["weights"][0])] * 2, rel=0.01)


def test_a_mixture_is_not_cut():
    with pytest.raises(ValueError, match="mixture has experts: train.. cuts no mixture"):
        train(run_of(tensor=2), num_steps=1)
