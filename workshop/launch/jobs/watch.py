"""Asking seldom: one question for all jobs of this user, and the less often the longer nothing has changed.

A scheduler serves everybody, and so does the shared file system on which the ranks' logs lie. A job may wait
for days. So both are looked at often while something happens, and seldom while nothing does.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Protocol

from workshop.launch.jobs.client import State
from workshop.launch.jobs.scheduler import Scheduler, scheduler_of


class Clock(Protocol):
    """What tells the time and lets it pass: the module ``time``, or a test's own."""

    def monotonic(self) -> float:
        """Seconds since some moment."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...


class Pace:
    """How long until the next look: a twentieth of the time for which nothing has changed, within bounds.

    Args:
        fastest: seconds between two looks while things change.
        slowest: seconds between two looks when nothing has changed for long.
        now: the clock's time at the beginning.
    """

    def __init__(self, fastest: float, slowest: float, now: float):
        self.fastest, self.slowest = fastest, slowest
        self._changed, self._next = now, now

    def due(self, now: float) -> bool:
        """Is it time to look?"""
        return now >= self._next

    def looked(self, now: float, *, changed: bool) -> None:
        """A look is over."""
        if changed:
            self._changed = now
        self._next = now + min(self.slowest, max(self.fastest, (now - self._changed) / 20))

    def hurry(self, now: float) -> None:
        """Something has changed elsewhere: look now, and often again."""
        self._changed = self._next = now

    def left(self, now: float) -> float:
        """Seconds until the next look."""
        return max(0.0, self._next - now)


class Watch:
    """The states of all jobs of this user, as the scheduler told them last.

    Whoever asks for a job gets what is known if it is young enough; else one question brings all up to date.
    What the accounts tell of a job that has ended stays as it is.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock = time):
        self.scheduler = scheduler
        self._clock = clock
        self._asked = float("-inf")
        self._asked_for: set[str] = set()
        self._queue: dict[str, list[State]] = {}
        self._ended: dict[str, dict[int | None, State]] = {}

    def states(self, jobs: Mapping[str, Collection[int]], max_age: float = 0.0) -> dict[str, list[State]]:
        """The states of these jobs by number; [] for one of which nobody knows anything.

        Args:
            jobs: by number, the elements whose own record does not tell how they ended.
            max_age: seconds; what was told so lately need not be asked again.

        Raises:
            SchedulerError: the scheduler cannot be asked.
        """
        age = self._clock.monotonic() - self._asked
        if age >= max_age or not self._asked_for.issuperset(jobs):
            self._ask(jobs)
        return {job: list(self._told(job).values()) for job in jobs}

    def _ask(self, jobs: Mapping[str, Collection[int]]) -> None:
        self._queue, self._asked = self.scheduler.queue(), self._clock.monotonic()
        self._asked_for = {*self._queue, *jobs}
        gone = {job: set(which) - {task or 0 for task in self._told(job)} for job, which in jobs.items()}
        gone = {job: which for job, which in gone.items() if which or not self._told(job)}
        if gone:
            for job, states in self.scheduler.ended(gone).items():
                kept = {state.task: state for state in states if state.over}
                self._ended.setdefault(job, {}).update(kept)
        for job in jobs:
            if any(state.waits for state in self._queue.get(job, ())):
                self._queue[job] = self.scheduler.explained(job, self._queue[job])

    def _told(self, job: str) -> dict[int | None, State]:
        return {**self._ended.get(job, {}), **{state.task: state for state in self._queue.get(job, ())}}


_watches: dict[str, Watch] = {}


def watch_of(name: str) -> Watch:
    """What this process knows of its user's jobs at a scheduler: one for all of them."""
    if name not in _watches:
        _watches[name] = Watch(scheduler_of(name))
    return _watches[name]
