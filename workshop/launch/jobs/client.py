"""What every scheduler's clients share: a job's state in words, their error, how one of them is run.

A client (``sbatch``, ``qstat`` ...) gets a time limit, no terminal and the notebook's variables without its
secrets, unless the site's file keeps them. What each scheduler makes of this is in `slurm` and `grid_engine`;
which of the two is meant, `scheduler` knows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from workshop.facts.secret_variables import secrets_in
from workshop.launch.session import EngineError
from workshop.site.current import scrubbed

_WHICH = (
    *("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"),
    *("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
)
KEPT = "WORKSHOP_JOB_KEEPS"  # names, for the process that hands a job in for a notebook
_kept: ContextVar[tuple[str, ...]] = ContextVar("kept", default=())
WAITING = frozenset(
    ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "HELD", "ERROR")
)
AT_WORK = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"))


class SchedulerError(EngineError):
    """A scheduler could not be asked, or refused; the message says what to do."""


@dataclass(frozen=True)
class State:
    """One job, or one element of an array: the word for its state, why it waits, where it runs.

    why: ``reason`` in words, where there are better ones. seconds: how long it ran, once that is known.
    """

    job: str
    task: int | None
    word: str
    reason: str = ""
    start: str = ""
    nodes: str = ""
    exit_code: str = ""
    why: str = ""
    seconds: float | None = None

    @property
    def waits(self) -> bool:
        """Not started yet, or to be started again."""
        return self.word in WAITING

    @property
    def over(self) -> bool:
        """It has ended, well or badly, and will not go on."""
        return self.word not in WAITING and self.word not in AT_WORK

    @property
    def sentence(self) -> str:
        """State and reason in words."""
        if not self.waits:
            return f"{self.word} on {self.nodes}" if self.nodes and not self.over else self.word
        reason = ": ".join(filter(None, (self.reason, self.why)))
        state = f"{self.word} ({reason})" if reason else self.word
        return f"{state}, expected to start at {self.start}" if self.start not in ("", "N/A") else state


def run_client(
    words: Sequence[str], limit: float, kind: type[SchedulerError], *, missing: str, silent: str
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's client to its end, however that is.

    limit: seconds. missing, silent: what is told where it is not installed, or does not answer in time.

    Raises ``kind`` with one of the two.
    """
    program = shutil.which(words[0])
    if program is None:
        raise kind(missing)
    try:
        return subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            timeout=limit,
            stdin=subprocess.DEVNULL,
            env=client_environment(os.environ),
            start_new_session=True,  # the stop button is for the notebook; it cancels the job in order
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise kind(silent) from None


@contextlib.contextmanager
def keeping(names: Iterable[str]) -> Iterator[None]:
    """Let these secrets through to jobs that are handed in meanwhile (``keep`` of the site's file)."""
    token = _kept.set(tuple(names))
    try:
        yield
    finally:
        _kept.reset(token)


def left_out(environment: Mapping[str, str], keep: Iterable[str]) -> tuple[str, ...]:
    """Names of the secrets that a job does not get to see."""
    return tuple(secrets_in(scrubbed(environment), tuple(keep)))


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a client, which a job inherits and a scheduler keeps.

    No rank of an outer job and no secrets (but those of `keeping`) are among them; those that say which
    scheduler is meant are.
    """
    gone = left_out(environment, _kept.get())
    seen = {name: value for name, value in scrubbed(environment).items() if name not in gone}
    return {**seen, **which_scheduler(environment)}


def which_scheduler(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say which scheduler is meant, and nothing of a job."""
    return {name: value for name, value in environment.items() if name in _WHICH}
