"""The predictor's bytes for LoRA and QLoRA beside a measured run: trained weights exactly, the peak within 2 %."""

from pathlib import Path

import pytest

from workshop import Adapter, Layout, ModelSpec, Run, launch, predict_memory
from workshop.facts.nf4 import nf4_bits

PROGRAM = Path(__file__).parent / "programs" / "adapter_memory.py"
SPEC = ModelSpec(
    "small", num_layers=8, hidden_size=576, num_heads=9, num_kv_heads=3, ffn_hidden_size=1536,
    vocab_size=4096, tied_embeddings=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(loaded_engine):
    return launch.torchrun(launch.Script(PROGRAM), 1, limits=launch.Limits(timeout=115))


@pytest.mark.parametrize(
    ("way", "bits"),
    [
        ("lora", 32),
        ("peft", 32),
        ("qlora", nf4_bits(double=True)),
    ],
)
def test_predicted_and_measured(ran, way, bits):
    adapter = Adapter("lora", 8, ("q", "v"), base_bits=bits)
    run = Run(SPEC, "this-machine", Layout(precision="fp32"), 2, 64, adapter=adapter, implementation="adapt")
    measured = ran[0][way]
    assert adapter.params(SPEC) == measured["trained"]
    assert abs(predict_memory(run).peak_bytes / measured["peak"] - 1) < 0.02
