"""To cancel is to ask, and to ask again where a node did not hear it.

Grid Engine's signal to a job that is just being started can be lost, and a host that is stopped or cut off
acknowledges none: the job runs on, marked as deleted, and the qmaster asks the host again only when somebody
asks the qmaster. So whoever ends a job looks until it is gone, and asks again every minute. The notebook does
it (`submitted.Submitted.cancel`), and where that is gone, the job's watchdog (`child/job_watchdog.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workshop.launch.jobs.client import SchedulerError
from workshop.launch.jobs.scheduler import Scheduler
from workshop.launch.jobs.watch import Clock

# Grid Engine's qmaster passes over whoever deletes a job again within a minute of its last signal.
AGAIN_SECONDS = 65.0


@dataclass(frozen=True)
class Ending:
    """What came of it. times: how often the scheduler was asked, and took it."""

    gone: bool
    times: int
    seconds: float

    def sentence(self, job: str) -> str:
        """In words."""
        if self.gone and self.times == 1:
            return f"job {job} was cancelled and is gone"
        if self.gone:
            return (
                f"job {job} was cancelled and is gone; that took {self.times} calls and "
                f"{self.seconds:.0f} s, for it was still there a minute after the first"
            )
        times = "once" if self.times == 1 else f"{self.times} times"
        return (
            f"job {job} was cancelled {times} and is still there after {self.seconds:.0f} s: its node seems "
            "not to answer. Cancel it again later; where its node is lost, who runs the machine takes it out "
            "of the queue"
        )


@dataclass(frozen=True)
class Patience:
    """How long and how often to look, in seconds. first, last: between two looks, at first and in the end.

    bears_silence: go on where the scheduler does not answer or refuses, and ask it again, from the first call
        on; else only once it has taken a call: a qmaster that is busy ending jobs may miss a question.
    """

    limit: float
    first: float
    last: float
    bears_silence: bool = False


def end_job(
    scheduler: Scheduler,
    job: str,
    is_gone: Callable[[], bool],
    patience: Patience,
    clock: Clock,
) -> Ending:
    """Cancel a job and look until it is gone, or the time is up.

    Args:
        is_gone: whether it has ended, as far as the caller wants to know.
        patience: after which time it is given up.

    Raises:
        SchedulerError: the scheduler cannot be asked, or refuses, and ``patience`` does not bear that; or it
            did not answer when the time was up.
    """
    silence: SchedulerError | None = None
    pause = patience.first
    begun, last_cancel, times = clock.monotonic(), float("-inf"), 0
    while (now := clock.monotonic()) - begun < patience.limit:
        try:
            if now - last_cancel >= AGAIN_SECONDS:
                scheduler.cancel(job)
                last_cancel, times = clock.monotonic(), times + 1
            if is_gone():
                return Ending(True, times, clock.monotonic() - begun)
            silence = None
        except SchedulerError as error:
            if not (patience.bears_silence or times):
                raise
            silence = error
            last_cancel = float("-inf")  # it may not have heard; a second time does no harm
        clock.sleep(pause)
        pause = min(2 * pause, patience.last)
    if silence and not patience.bears_silence:
        raise silence
    return Ending(False, times, clock.monotonic() - begun)
