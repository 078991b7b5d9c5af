"""A job that was handed in: its state, its output while it runs, its end.

While something happens, the scheduler is asked every half second and the ranks' files are read five times a
second; in a long silence once a minute and every ten seconds (`jobs.watch`). What the batch script leaves
when it begins and ends makes the scheduler be asked at once.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workshop.launch import rank_folder
from workshop.launch.failures import RankInterrupted, attach
from workshop.launch.fresh.replicas import ReplicasResult
from workshop.launch.fresh.torchrun import Result
from workshop.launch.jobs import end as job_end
from workshop.launch.jobs.client import SchedulerError, State
from workshop.launch.jobs.end import ArrayResult
from workshop.launch.jobs.ending import Patience, end_job
from workshop.launch.jobs.record import CANCELLED, Record, Task, write_record
from workshop.launch.jobs.watch import Clock, Pace, watch_of
from workshop.launch.output import Transcript

# Fastest and slowest look at the scheduler, and at the ranks' files, in seconds (`jobs.watch.Pace`).
ASK_SECONDS = (0.5, 60.0)
READ_SECONDS = (0.2, 10.0)
READ_SECONDS_A_LOG = 0.005  # many logs on a shared file system are read less often
SILENCE_SECONDS = 120.0  # a controller that is restarted is silent for a while; the job goes on
# Until a job that was cancelled is given up: it is asked three times. Slurm gives ranks KillWait seconds (30)
# between SIGTERM and SIGKILL.
CANCEL_PATIENCE = Patience(limit=180.0, first=0.2, last=5.0)
SETTLE_SECONDS = 30.0  # accounts and files of other nodes are seen this much later, at worst
OnOutput = Callable[[str, str], None]


@dataclass
class _Shown:
    """What is shown of one task: the ranks' logs of its last start and attempt, and the text made of them."""

    at: tuple[int, int]
    transcript: Transcript
    text: str = ""

    def read(self, whole: bool) -> str:
        """The text, made anew where there is more to read."""
        if whole:
            self.transcript.finish()
        if self.transcript.read() or whole:
            self.text = self.transcript.text()
        return self.text


class Submitted:
    """One job that was handed in. ``watchdog``: the process that ends it with this notebook, if it does."""

    def __init__(
        self,
        directory: Path,
        record: Record,
        watchdog: subprocess.Popen[str] | None = None,
        clock: Clock = time,
    ):
        self.directory = directory
        self.record = record
        self.number = record.job
        self.tasks = {number: Task(directory, record, number) for number in record.tasks}
        self.left_out: tuple[str, ...] = ()  # secrets of the environment that the job does not see
        self.allow_pickle = False  # whether reported values that had to be pickled are read, which runs code
        self._watch = watch_of(record.scheduler)
        self._watchdog = watchdog
        self._missed: dict[int, float] = {}  # since when nobody knows a task that was seen alive
        self._shown: dict[int, _Shown] = {}
        self._clock = clock
        self._began = clock.monotonic()

    def __repr__(self) -> str:
        return f"{self.record.sentence} ({self.record.name}, {self.directory})"

    def without(self) -> str:
        """Which secrets the job does not see, and how it would; "" where there were none."""
        if not self.left_out:
            return ""
        names = ", ".join(self.left_out)
        return f"left out of the job: {names} (`keep` in [job] of the site's file lets one in)"

    # ------------------------------------------------------------------ state

    def unrecorded(self) -> list[int]:
        """Tasks whose own record does not tell how they ended."""
        return [number for number, task in self.tasks.items() if task.exit_code() is None]

    def open_elements(self) -> list[int]:
        """The same as the scheduler counts: to it, all replicas are one."""
        unrecorded = self.unrecorded()
        return [0] if self.record.replicas and unrecorded else unrecorded

    def states(self, max_age: float = 0.0) -> dict[int, State]:
        """The state of each task, as the scheduler knows it, or the job's own record when that forgot it.

        Args:
            max_age: seconds; an answer to another question that is younger will do.

        Raises:
            SchedulerError: the scheduler cannot be asked.
        """
        unrecorded = self.unrecorded()
        listed = self._watch.states({self.number: self.open_elements()}, max_age)[self.number]
        by_task = {0 if state.task is None else state.task: state for state in listed}
        if self.record.replicas:  # one job to the scheduler
            by_task = dict.fromkeys(self.tasks, by_task[0]) if by_task else {}
        states, now = {}, self._clock.monotonic()
        for number, task in self.tasks.items():
            state = job_end.settled(task, by_task.get(number))
            if not state.over:
                self._missed[number] = math.inf
            elif number in unrecorded and number not in by_task and not task.cancelled():
                since = self._missed[number] = min(now, self._missed.get(number, -math.inf))
                state = replace(state, word="COMPLETING") if now - since < SETTLE_SECONDS else state
            states[number] = state
        return states

    def sentence(self, states: Mapping[int, State]) -> str:
        """All states in one line, equal ones once."""
        groups: dict[str, list[int]] = {}
        for number, state in states.items():
            groups.setdefault(state.sentence, []).append(number)
        if len(groups) == 1:
            return next(iter(groups))
        return "; ".join(
            f"task {','.join(map(str, tasks))}: {sentence}" for sentence, tasks in groups.items()
        )

    # ------------------------------------------------------------------ follow

    def follow(self, on_output: OnOutput | None = None) -> Result | ArrayResult | ReplicasResult:
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
        clock, states = self._clock, dict[int, State]()
        sentence, words, text, shown = "", "", "", ("", "")
        answered_at = now = clock.monotonic()
        asking = Pace(*ASK_SECONDS, now)
        logs = READ_SECONDS_A_LOG * len(self.tasks) * self.record.world_size
        reading = Pace(max(READ_SECONDS[0], logs), max(READ_SECONDS[1], logs), now)
        marks = self._marks()
        while True:
            now = clock.monotonic()
            if asking.due(now):
                before = words
                try:
                    states, answered_at = self.states(ASK_SECONDS[0]), now
                    sentence, words = self.sentence(states), str([state.word for state in states.values()])
                except SchedulerError as error:
                    if now - answered_at > SILENCE_SECONDS:
                        raise
                    sentence = words = str(error).partition(". ")[0]
                asking.looked(now, changed=words != before)
            if states and all(state.over for state in states.values()):
                return states
            if reading.due(now):
                marks, marked = self._marks(), marks
                text, read = self.text() if any(marks.values()) else "", text
                if marks != marked:  # begun, begun again, or ended
                    asking.hurry(now)
                reading.looked(now, changed=text != read or marks != marked)
            new = (f"{self.record.sentence}: {sentence}", text)
            if on_output is not None and new != shown:
                on_output(*new)
                shown = new
            clock.sleep(max(0.05, min(asking.left(now), reading.left(now))))

    def _marks(self) -> dict[int, tuple[int, int | None] | None]:
        """What each task's batch script has left of its last start: how often, and its exit code."""
        return {
            number: (task.start, task.exit_code()) if task.began() else None
            for number, task in self.tasks.items()
        }

    def text(self, *, whole: bool = False) -> str:
        """What the ranks have printed so far, equal lines once. ``whole``: nothing will follow."""
        parts = []
        for number, task in self.tasks.items():
            at = (task.start, task.attempt)
            if number not in self._shown or self._shown[number].at != at:
                ranks = range(self.record.world_size)
                paths = {rank: task.rank_dir(rank) / rank_folder.LOG for rank in ranks}
                self._shown[number] = _Shown(at, Transcript(paths))
            text = self._shown[number].read(whole)
            if self.record.several and text:
                text = f"{self.record.task_label(number)}\n{text}"
            parts.append(text)
        return "".join(parts)

    # ------------------------------------------------------------------ end

    def conclude(self, states: Mapping[int, State] | None = None) -> Result | ArrayResult | ReplicasResult:
        """The result of a job that is over; raises as `follow`. ValueError while it is not."""
        states = states or self.states()
        if not all(state.over for state in states.values()):
            raise ValueError(f"job {self.number} is not over: {self.sentence(states)}; follow() waits for it")
        return job_end.conclude(
            self.record,
            self.tasks,
            states,
            self.text(whole=True),
            self._clock.monotonic() - self._began,
            allow_pickle=self.allow_pickle,
        )

    def cancel(self) -> str:
        """End it and wait until it is gone, asking again where its node did not hear; says what that took.

        Raises SchedulerError when nobody answers, or it is still there after three minutes.
        """
        if not self._over():
            (self.directory / CANCELLED).touch()
        ending = end_job(self._watch.scheduler, self.number, self._over, CANCEL_PATIENCE, self._clock)
        if not ending.gone:
            raise SchedulerError(ending.sentence(self.number))
        self.release()
        return ending.sentence(self.number)

    def _over(self) -> bool:
        return all(state.over for state in self.states().values())

    def cancel_quietly(self) -> None:
        """End it where something else went wrong already; should that fail now, the watchdog does it."""
        if self._watchdog is not None:
            with contextlib.suppress(SchedulerError):
                self.cancel()

    def _interrupted(self) -> RankInterrupted:
        partial = Result({}, self.text(), self.record.sentence, self._clock.monotonic() - self._began)
        if self._watchdog is None:
            message = (
                f"job {self.number} was detached and goes on; jobs.find({self.number}).cancel() ends it."
            )
            return attach(RankInterrupted(message), partial)
        try:
            return attach(RankInterrupted(f"{self.cancel()}."), partial)
        except SchedulerError as error:
            return attach(RankInterrupted(f"job {self.number} may still be there: {error}"), partial)

    def release(self) -> None:
        """Tell the watchdog that the job need not be ended any more."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            assert self._watchdog.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._watchdog.stdin.write("done\n")
                self._watchdog.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                self._watchdog.stdin.close()
            self._watchdog.stdout.close()
            self._watchdog.wait()
            self._watchdog = None

    def detach(self) -> None:
        """Let it outlive this notebook; `find` gives it back."""
        self.release()
        self.record = replace(self.record, detached=True)
        write_record(self.directory, self.record)
