"""Jobs of a scheduler: hand a program in, follow it as if it ran here, find it again."""

from workshop.launch.jobs.queue import (
    Sweep,
    check,
    check_scheduler,
    find,
    known,
    states_of,
    submit,
    try_out,
)
from workshop.launch.jobs.submitted import Submitted

__all__ = [
    "Submitted",
    "Sweep",
    "check",
    "check_scheduler",
    "find",
    "known",
    "states_of",
    "submit",
    "try_out",
]
