"""What a notebook sees: the magics and the widgets. `%load_ext workshop` loads them."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

WARM_UP = "WORKSHOP_WARM_UP"  # "off": the engine starts with the first cell that needs it


def load(ip: Any) -> None:
    """Register every magic of the workshop and warm the launch engine up in the background.

    Whoever reads the first cells finds it ready. Where nobody reads (all cells at once, on busy cores) it is
    seconds of a core, of no use to a notebook without ranks: ``WORKSHOP_WARM_UP=off`` leaves it out.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as in ranks: time stamps are no output
    from workshop.jupyter.exercise import ExerciseMagics
    from workshop.jupyter.flags import make_usage_errors_red
    from workshop.jupyter.magics import ParallelMagics
    from workshop.jupyter.monitor_magic import MonitorMagics
    from workshop.jupyter.rehearse_magic import RehearseMagics
    from workshop.jupyter.room_magic import RoomMagics
    from workshop.jupyter.sbatch_magic import JobMagics
    from workshop.launch.session import EngineError, Session

    ip.register_magics(ParallelMagics)
    ip.register_magics(ExerciseMagics)
    ip.register_magics(RehearseMagics)
    ip.register_magics(JobMagics)
    ip.register_magics(MonitorMagics)
    ip.register_magics(RoomMagics)
    make_usage_errors_red(ip)
    quiet_at_shutdown(ip)
    if os.environ.get(WARM_UP, "on").lower() != "off":
        with contextlib.suppress(EngineError, OSError):  # said when the first cell needs it
            Session.get()


def quiet_at_shutdown(ip: Any) -> None:
    """Keep ipykernel from printing a stack into the server's terminal when a restart meets a running cell.

    The restart interrupts the cell and at once closes the kernel's sockets. A cell of ranks takes a moment to
    free them, and then ipykernel finds no socket for its answer, which nobody waits for.
    """
    log = getattr(getattr(ip, "kernel", None), "log", None)
    if log is not None:
        getattr(log, "logger", log).addFilter(_not_about_a_closed_socket)


def _not_about_a_closed_socket(record: logging.LogRecord) -> bool:
    import zmq

    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, zmq.ZMQError) and error.errno == zmq.ENOTSOCK)
