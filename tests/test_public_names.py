"""`from workshop import ...` gives what the lessons use, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import workshop


@pytest.mark.parametrize("name", workshop.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(workshop, name) is not None


@pytest.mark.parametrize(
    "before", ["", "import workshop.rehearse.report", "import workshop.rehearse, workshop.measure.report"]
)
def test_measure_and_rehearse_are_callable_whatever_came_first(before: str) -> None:
    code = f"""
{before}
import sys
from workshop import measure, rehearse
assert "torch" not in sys.modules
try:
    rehearse("x = 1\\n", 2, rank=5)
except ValueError as error:
    assert "rank 5 is not in a world of 2" in str(error), error
else:
    raise AssertionError("a rank outside the world was accepted")
assert rehearse is sys.modules["workshop.rehearse"] and callable(measure)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_measure_measures() -> None:
    torch = pytest.importorskip("torch")
    from workshop import measure

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with measure(model, optimizer) as measured:
        for _ in range(2):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert measured.memory.peak_bytes > 0


def test_predictions_need_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from workshop import Layout, ModelSpec, Run, plan, predict_memory, predict_step, show\n"
        "assert not {'torch', 'matplotlib', 'IPython'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
