"""What a notebook sees: the magics and the widgets. `%load_ext workshop` loads them."""

from __future__ import annotations

import contextlib
from typing import Any


def load(ip: Any) -> None:
    """Register every magic of the workshop and warm the launch engine up in the background."""
    from workshop.jupyter.exercise import ExerciseMagics
    from workshop.jupyter.magics import ParallelMagics
    from workshop.jupyter.monitor_magic import MonitorMagics
    from workshop.jupyter.rehearse_magic import RehearseMagics
    from workshop.jupyter.sbatch_magic import JobMagics
    from workshop.jupyter.usage import make_usage_errors_red
    from workshop.launch.session import EngineError, Session

    ip.register_magics(ParallelMagics)
    ip.register_magics(ExerciseMagics)
    ip.register_magics(RehearseMagics)
    ip.register_magics(JobMagics)
    ip.register_magics(MonitorMagics)
    make_usage_errors_red(ip)
    with contextlib.suppress(EngineError, OSError):  # said when the first cell needs it
        Session.get()
