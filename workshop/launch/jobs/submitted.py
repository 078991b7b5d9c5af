"""A job that was handed in: its state, its output while it runs, its end.

The scheduler is asked seldom (it serves everybody) and the ranks' files are read often (they are ours).
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from workshop.launch import rank_folder
from workshop.launch.failures import RankInterrupted
from workshop.launch.fresh.torchrun import Result, attach
from workshop.launch.jobs import end as job_end
from workshop.launch.jobs.end import ArrayResult
from workshop.launch.jobs.record import CANCELLED, Record, Task, write_record
from workshop.launch.jobs.scheduler import SchedulerError, State, scheduler_of
from workshop.launch.output import Transcript

_LOOK_EVERY = 0.2
SILENCE_SECONDS = 120.0  # a controller that is restarted is silent for a while; the job goes on
CANCEL_SECONDS = 90.0  # Slurm gives ranks KillWait seconds (30) between SIGTERM and SIGKILL
SETTLE_SECONDS = 30.0  # accounts and files of other nodes are seen this much later, at worst
OnOutput = Callable[[str, str], None]


class Submitted:
    """One job that was handed in. ``keeper``: the process that ends it with this notebook, if it does."""

    def __init__(self, directory: Path, record: Record, keeper: subprocess.Popen[str] | None = None):
        self.directory = directory
        self.record = record
        self.number = record.job
        self.tasks = {number: Task(directory, record, number) for number in record.tasks}
        self.allow_pickle = False  # whether reported values that had to be pickled are read, which runs code
        self._scheduler = scheduler_of(record.scheduler)
        self._keeper = keeper
        self._alive: dict[int, float] = {}
        self._shown: dict[int, tuple[tuple[int, int], Transcript]] = {}
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"{self.record.sentence} ({self.record.name}, {self.directory})"

    # ------------------------------------------------------------------ state

    def states(self) -> dict[int, State]:
        """The state of each task, as the scheduler knows it, or the job's own record when that forgot it.

        Raises SchedulerError where it cannot be asked.
        """
        unrecorded = [number for number, task in self.tasks.items() if task.exit_code() is None]
        listed = self._scheduler.states(self.number, unrecorded)
        told = {0 if state.task is None else state.task: state for state in listed}
        found, now = {}, time.monotonic()
        for number, task in self.tasks.items():
            state = job_end.settled(task, told.get(number))
            if not state.over:
                self._alive[number] = now
            elif number in unrecorded and number not in told and not task.cancelled():
                lately = now - self._alive.get(number, -math.inf) < SETTLE_SECONDS
                state = replace(state, word="COMPLETING") if lately else state
            found[number] = state
        return found

    def sentence(self, states: Mapping[int, State]) -> str:
        """All states in one line, equal ones once."""
        groups: dict[str, list[int]] = {}
        for number, state in states.items():
            groups.setdefault(state.sentence, []).append(number)
        if len(groups) == 1:
            return next(iter(groups))
        return "; ".join(f"task {','.join(map(str, tasks))}: {said}" for said, tasks in groups.items())

    # ------------------------------------------------------------------ follow

    def follow(self, on_output: OnOutput | None = None) -> Result | ArrayResult:
        """Wait for the end, showing state and output; what `torchrun` returns, one for each task of an array.

        on_output: called with (first line, text so far), at most five times a second.

        Raises `RankFailed` (with `RankTimeout`) when a rank fails, `RankInterrupted` at the stop button: the
        job is cancelled first, unless it was detached. SchedulerError when it stays silent.
        """
        try:
            states = self._until_over(on_output)
        except KeyboardInterrupt:
            raise self._interrupted() from None
        except BaseException:
            self.cancel_quietly()
            raise
        self.release()
        return self.conclude(states)

    def _until_over(self, on_output: OnOutput | None) -> dict[int, State]:
        states: dict[int, State] = {}
        shown, asked, heard = ("", ""), 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            if now - asked >= self._patience(now):
                asked = now
                try:
                    states, heard = self.states(), time.monotonic()
                    said = self.sentence(states)
                except SchedulerError as error:
                    if now - heard > SILENCE_SECONDS:
                        raise
                    said = str(error).partition(". ")[0]
            if states and all(state.over for state in states.values()):
                return states
            new = (f"{self.record.sentence}: {said}", self.text())
            if on_output is not None and new != shown:
                on_output(*new)
                shown = new
            time.sleep(_LOOK_EVERY)

    def _patience(self, now: float) -> float:
        """Seconds between two questions to the controller, which serves everybody: half a second to five."""
        return min(5.0, 0.5 + (now - self._began) / 20)

    def text(self, *, whole: bool = False) -> str:
        """What the ranks have printed so far, equal lines once. ``whole``: nothing will follow."""
        parts = []
        for number, task in self.tasks.items():
            at = (task.start, task.attempt)
            if number not in self._shown or self._shown[number][0] != at:
                paths = {
                    rank: task.rank_dir(rank) / rank_folder.LOG for rank in range(self.record.world_size)
                }
                self._shown[number] = (at, Transcript(paths))
            transcript = self._shown[number][1]
            if whole:
                transcript.finish()
            else:
                transcript.read()
            said = transcript.text()
            if self.record.array and said:
                said = f"{self.record.task_label(number)}\n{said}"
            parts.append(said)
        return "".join(parts)

    # ------------------------------------------------------------------ end

    def conclude(self, states: Mapping[int, State] | None = None) -> Result | ArrayResult:
        """The result of a job that is over; raises as `follow`. ValueError while it is not."""
        states = states or self.states()
        if not all(state.over for state in states.values()):
            raise ValueError(f"job {self.number} is not over: {self.sentence(states)}; follow() waits for it")
        return job_end.conclude(
            self.record,
            self.tasks,
            states,
            self.text(whole=True),
            time.monotonic() - self._began,
            allow_pickle=self.allow_pickle,
        )

    def cancel(self) -> None:
        """End it and wait until it is gone. Raises SchedulerError when nobody answers, or does so."""
        if any(not state.over for state in self.states().values()):
            (self.directory / CANCELLED).touch()
        self._scheduler.cancel(self.number)
        deadline = time.monotonic() + CANCEL_SECONDS
        while any(not state.over for state in self.states().values()):
            if time.monotonic() > deadline:
                raise SchedulerError(
                    f"job {self.number} was cancelled and is still there after {CANCEL_SECONDS:g} s"
                )
            time.sleep(_LOOK_EVERY)
        self.release()

    def cancel_quietly(self) -> None:
        """End it where something else went wrong already; should that fail now, the keeper does it."""
        if self._keeper is not None:
            with contextlib.suppress(SchedulerError):
                self.cancel()

    def _interrupted(self) -> RankInterrupted:
        partial = Result({}, self.text(), self.record.sentence, time.monotonic() - self._began)
        if self._keeper is None:
            said = f"job {self.number} was detached and goes on; jobs.find({self.number}).cancel() ends it."
            return attach(RankInterrupted(said), partial)
        try:
            self.cancel()
        except SchedulerError as error:
            return attach(RankInterrupted(f"job {self.number} may still be there: {error}"), partial)
        return attach(RankInterrupted(f"job {self.number} was cancelled and is gone."), partial)

    def release(self) -> None:
        """Tell the keeper that the job need not be ended any more."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write("done\n")
                self._keeper.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()
            self._keeper.stdout.close()
            self._keeper.wait()
            self._keeper = None

    def detach(self) -> None:
        """Let it outlive this notebook; `find` gives it back."""
        self.release()
        self.record = replace(self.record, detached=True)
        write_record(self.directory, self.record)
