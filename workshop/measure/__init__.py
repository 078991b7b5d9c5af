"""Look at what really happened: bytes, traffic, FLOPs and seconds of the training code you run.

    from workshop.measure import measure

    with measure(model, optimizer) as measured:
        for batch in batches:
            train_step(batch)
    measured                        # in a notebook it shows itself; print(measured) elsewhere
    measured.to_dict()              # plain data, ready for JSON

One module for each quantity: `memory` (bytes, by part), `comms` (collectives), `flops`, `clock` (phases of a
step); `held` (what this rank holds now); `machine` (what this machine can do: `calibrate()`). `ledger` and
`report` hold the arithmetic and the result, and do not import torch. And to see what a machine does: `spans`
and `step_timer` (phases with names), `trace` (torch.profiler's file), `calls` (cProfile), `monitor`.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workshop.measure.calls import profile_calls as profile_calls
    from workshop.measure.held import count_from_here as count_from_here
    from workshop.measure.held import held_bytes as held_bytes
    from workshop.measure.machine import calibrate as calibrate
    from workshop.measure.monitor import Monitor as Monitor
    from workshop.measure.report import Measured as Measured
    from workshop.measure.session import measure as measure
    from workshop.measure.spans import span as span
    from workshop.measure.step_timer import StepTimer as StepTimer
    from workshop.measure.trace import read_trace as read_trace

_HOMES = {
    "calibrate": "workshop.measure.machine",
    "measure": "workshop.measure.session",
    "Measured": "workshop.measure.report",
    "Monitor": "workshop.measure.monitor",
    "StepTimer": "workshop.measure.step_timer",
    "count_from_here": "workshop.measure.held",
    "held_bytes": "workshop.measure.held",
    "profile_calls": "workshop.measure.calls",
    "read_trace": "workshop.measure.trace",
    "span": "workshop.measure.spans",
}
__all__ = [
    "Measured",
    "Monitor",
    "StepTimer",
    "calibrate",
    "count_from_here",
    "held_bytes",
    "measure",
    "profile_calls",
    "read_trace",
    "span",
]


def __getattr__(name: str) -> Any:
    """Import `measure` (and with it torch) only when somebody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


class _Room(ModuleType):
    """Makes the package callable: its name is also what `from workshop import` gives for the function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.measure(*args, **options)


sys.modules[__name__].__class__ = _Room
