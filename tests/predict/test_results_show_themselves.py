"""Results of predictions show themselves: the same words as text, in a notebook as HTML."""

from __future__ import annotations

import pytest

from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.cost import training_cost_of_model
from workshop.predict.memory import predict_memory
from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.plan import Search, plan
from workshop.predict.time.step import predict_step


@pytest.fixture(scope="module")
def run() -> Run:
    layout = Layout(shard=8, zero=3, tensor=2, pipeline=4)
    return Run("llama-3.1-8b", "64xH100", layout, seq_len=8192, global_batch=64)


def test_memory_is_a_table_of_stages_with_its_verdict(run: Run) -> None:
    expected = predict_memory(run)
    text = repr(expected)
    assert "stage 3 (loss)" in text
    assert expected.verdict in text
    assert "<table>" in expected._repr_html_()


def test_of_many_stages_a_few_are_shown() -> None:
    run = Run("gpt3-175b", "96xA100-80GB", Layout(pipeline=96), accumulation=96)
    text = repr(predict_memory(run))
    assert "stage 0" in text
    assert "stage 95" in text
    assert "stage 50" not in text


def test_step_plan_cost_and_pipeline_speak_in_sentences(run: Run) -> None:
    step = predict_step(run)
    assert repr(step) == str(step)
    assert "MFU" in step._repr_html_()
    found = plan("llama-3-8b", "8xH100", 64, 4096, Search(top=1))
    assert "layouts timed" in repr(found)
    assert found._repr_html_().startswith("<pre")
    cost = training_cost_of_model(run.model, 8192, 1e12, run.cluster, 0.4)
    assert "days" in repr(cost)
    assert "idle 27.3%" in repr(simulate_pipeline("1f1b", 4, 8, Durations(1.0, 2.0)))
