"""How far a prediction walks: a reader who follows it opens at most twelve files, each an idea of its own."""

import pytest

from tests.crossed import modules_crossed
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.memory import predict_memory
from workshop.predict.time.step import predict_step
from workshop.predict.traffic import predict_traffic

MOST = 12
MEGATRON = {"precision": "megatron-bf16", "sequence_parallel": True, "tensor": 2}
RUNS = {
    "dense on every axis": Run(
        "llama-3-8b",
        "64xH100",
        Layout(replicate=2, shard=2, zero=1, pipeline=4, context=2, recompute="full", **MEGATRON),
        accumulation=4,
        implementation="megatron",
    ),
    "experts, recomputed in part": Run(
        "mixtral-8x7b",
        "32xH100",
        Layout(shard=16, zero=1, expert=8, recompute="selective", **MEGATRON),
        implementation="megatron",
    ),
    "fully sharded": Run("llama-3-8b", "32xH100", Layout(shard=32, zero=3)),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("predict", [predict_memory, predict_step, predict_traffic])
def test_a_prediction_crosses_at_most_twelve_modules(predict, name):
    predict(RUNS[name])
    modules = modules_crossed(predict, RUNS[name])
    assert "predict/layouts.py" in modules  # the tracer sees
    assert len(modules) <= MOST, f"{predict.__name__} enters {len(modules)} modules: {modules}"
