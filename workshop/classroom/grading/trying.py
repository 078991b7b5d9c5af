"""In the sandbox: run an answer on ranks, and hand on what they reported, as data.

    python -m workshop.classroom.grading.trying

The ranks start as in a notebook (`workshop.launch`), with a supervisor of their own. Their reports are read
here, where a pickle that one of them wrote can do no harm, and go on as data. ``complete`` says of each rank
whether it came to the end of the check and reported one check only; a cell that reports a check of its own
and leaves is seen by that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
from typing import Any

from workshop import launch
from workshop.classroom.grading.sandbox import CONNECTION
from workshop.classroom.grading.wire import Ended, encode, receive_message, send_message
from workshop.exercises import find

_DONE = "grading_done"


def serve(end: socket.socket) -> None:
    """Answer requests until the grader is gone."""
    while True:
        request = receive_message(end)
        send_message(end, tried(find(request["exercise"]), request["source"], request["seconds"]))


def tried(exercise: Any, source: str, seconds: float) -> dict[str, Any]:
    """One answer on its ranks: reports, or who failed."""
    seal = secrets.token_hex(16)
    last = f"from workshop.launch.report import report as _report\n_report({_DONE}={seal!r})\n"
    program = launch.Cell(f"{source}\n\n{exercise.check_program}\n{last}", f"%%exercise {exercise.name}")
    try:
        result = launch.torchrun(program, exercise.ranks, limits=launch.Limits(timeout=seconds))
    except launch.RankFailed as failed:
        return {
            "failed": str(failed).partition("\n")[0],
            "failures": [dataclasses.asdict(one) for one in failed.failures],
        }
    reports = [result[rank] for rank in range(exercise.ranks)]
    return {
        "reports": [encode(each.get("check")) for each in reports],
        "complete": [_complete(each, seal) for each in reports],
    }


def _complete(report: Any, seal: str) -> bool:
    checks = sum("check" in call for call in report.calls)
    return checks == 1 and report.get(_DONE) == seal


if __name__ == "__main__":
    with contextlib.suppress(Ended):
        serve(socket.socket(fileno=int(os.environ.pop(CONNECTION))))
