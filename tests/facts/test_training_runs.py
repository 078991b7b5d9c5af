"""Runs that happened: every entry is whole, names its source, and a wrong one is refused."""

import pytest

from workshop.facts.training_runs import TrainingRun, training_run, training_runs

GIVEN = {"name": "x", "cluster": "8xH100", "tokens": 1e12, "source": "here", "days": 1.0}


@pytest.mark.parametrize("run", training_runs().values(), ids=lambda run: run.name)
def test_every_run_names_its_source_model_and_hardware(run):
    assert "arXiv" in run.source or "Stanford" in run.source
    assert run.hardware.device.peak("bf16") > 1e14
    assert bool(run.spec) != bool(run.params)
    assert not run.rate_of or training_run(run.rate_of).rate_of == ""


def test_an_unknown_run_names_the_nearest():
    with pytest.raises(ValueError, match="'llama-65b'"):
        training_run("lama-65b")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"params": 1e9}, "gives none as its rate"),
        ({"params": 1e9, "mfu": 0.4, "tflops": 100.0}, "gives tflops, mfu"),
        ({"params": 1e9, "mfu": 0.4, "model": "llama-65b"}, "either model or params"),
        ({"mfu": 0.4}, "either model or params"),
        ({"params": 1e9, "mfu": 0.4, "counts": "all"}, "counts"),
        ({"params": 1e9, "mfu": 0.4, "days": 0.0}, "neither days nor device_hours"),
    ],
)
def test_what_is_no_run(changed, words):
    with pytest.raises(ValueError, match=words):
        TrainingRun(**{**GIVEN, **changed})
