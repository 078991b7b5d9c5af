"""Play seven steps with the learner's `scaled_step`, on one rank.

There the model, the optimizer and the function are in one process wherever the answer is judged: a grader's
sandbox is handed values, and a loss with its graph is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Wrong
from workshop.exercises.scaled_step.check import play
from workshop.launch.report import report


def try_on_rank(scaled_step: Callable[..., Any]) -> None:
    """Report by how much the weights moved in each step (as text: NaN is a number here), and the state."""
    try:
        seen = play(scaled_step)
    except Wrong as wrong:
        report(check={"wrong": str(wrong), "steps": []})
        return
    steps = [[list(map(str, one.moved)), *one.state, one.stepped] for one in seen]
    report(check={"wrong": "", "steps": steps})
