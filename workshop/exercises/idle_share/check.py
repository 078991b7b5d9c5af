"""Exercise: how long a device stands idle that is handed kernels one after the other."""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

NAME = "idle_share"


def _idle(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for number, kernel in enumerate(kernels):
        python += launch
        device = max(device, python) + kernel
        python = device if number in waits else python
    return 1 - sum(kernels) / device


def _never(launch: float, kernels: list[float], waits: set[int]) -> float:
    del waits
    return _idle(launch, kernels, set())


def _always(launch: float, kernels: list[float], waits: set[int]) -> float:
    del waits
    return _idle(launch, kernels, set(range(len(kernels))))


def _busy(launch: float, kernels: list[float], waits: set[int]) -> float:
    return 1 - _idle(launch, kernels, waits)


MISTAKES = (
    Mistake(
        _never,
        "That is right for Python that never waits: after a kernel in `waits` it goes on too early.",
    ),
    Mistake(
        _always,
        "That would be right if launches and kernels came one after the other, or Python waits after every "
        "kernel. The device runs a kernel while Python hands over the next.",
    ),
    Mistake(_busy, "That is the share in which the device is busy, not idle."),
)
CALLS = (
    Call((5.0, [10.0, 10.0, 10.0], set())),
    Call((5.0, [2.0, 2.0, 30.0, 2.0, 2.0], set())),
    Call((5.0, [20.0, 20.0, 20.0, 20.0], {1})),
    Call((6.0, [40.0, 1.0, 1.0, 40.0, 3.0], {0, 3})),
    Call((3.0, [7.0], {0})),
)


def check(names: dict[str, Any]) -> str:
    """Queues with short and long kernels, with waits and without."""
    compare(names[NAME], NAME, CALLS, _idle, MISTAKES)
    return f"{len(CALLS)} queues: idle where Python is late, and after each wait."
