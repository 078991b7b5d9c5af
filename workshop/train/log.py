"""Numbers of a training on their way to a file: one interface, several homes.

    log = open_log("jsonl", folder)
    log.write(step, loss=3.2, learning_rate=1e-3)
    log.close()

======================  ===================================================  ==============================
name                    what it leaves in the folder                         needs
======================  ===================================================  ==============================
``jsonl``               ``log.jsonl``: one JSON object a line                nothing
``tensorboard``         an event file                                        ``pip install tensorboard``
``wandb``               a run that stays on this disk (offline); ``wandb     ``pip install wandb``
                        sync`` sends it later, if you want that
``aim``                 a repository for ``aim up``                          ``pip install aim``
``none``                nothing                                              nothing
======================  ===================================================  ==============================

Only rank 0 writes: the loop opens ``none`` elsewhere. Each library is imported when its log is opened.
``aim up`` finds a run by itself; before a script reads the repository, ``aim storage reindex`` has to be said
once: Aim 3.29 enters a finished run into its index no sooner.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from workshop.facts.checks import check_choice


class Log(Protocol):
    """Where numbers go."""

    def write(self, step: int, **values: float) -> None:
        """Keep named numbers of a step."""

    def close(self) -> None:
        """Everything is on disk when this returns."""


class NoLog:
    """Forgets everything: what the other ranks write to."""

    def write(self, step: int, **values: float) -> None:
        """Forget."""

    def close(self) -> None:
        """Nothing to close."""


class JsonLines:
    """``log.jsonl``: a line for each step, with the time it was written. A restarted run goes on below.

    A line is on disk when `write` returns, so a killed run leaves all it had said.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.jsonl"
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, step: int, **values: float) -> None:
        """One line."""
        line = {"step": step, "time": round(time.time(), 3), **{k: float(v) for k, v in values.items()}}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """An event file for ``tensorboard --logdir``."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, **values: float) -> None:
        """A point in each value's curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases in offline mode: it asks for no account and sends nothing."""

    def __init__(self, folder: Path) -> None:
        import wandb

        self._run = wandb.init(mode="offline", dir=str(folder), settings=wandb.Settings(silent=True))

    def write(self, step: int, **values: float) -> None:
        """A point in each value's curve."""
        self._run.log({name: float(value) for name, value in values.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class Aim:
    """A run in an Aim repository inside the folder; without the sampling of the machine's own numbers."""

    def __init__(self, folder: Path) -> None:
        from aim import Run

        self._run = Run(repo=str(folder), system_tracking_interval=None, log_system_params=False)

    def write(self, step: int, **values: float) -> None:
        """A point in each value's curve."""
        for name, value in values.items():
            self._run.track(float(value), name=name, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.close()


_LOGS: dict[str, Callable[[Path], Any]] = {
    "jsonl": JsonLines,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "aim": Aim,
}


def open_log(name: str, folder: str | Path) -> Log:
    """A log of that name in ``folder``, which is made.

    Raises:
        ValueError: an unknown name; the message lists the known ones.
        ImportError: its library is not installed; the message says which.
    """
    check_choice("log", name, [*_LOGS, "none"])
    if name == "none":
        return NoLog()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        log: Log = _LOGS[name](folder)
    except ImportError as error:
        raise ImportError(
            f"log {name!r} needs a library that is not installed ({error}): pip install {name}, "
            "or choose jsonl, which needs none"
        ) from error
    return log
