"""A made-up room, so that an instructor can look at one before a course begins, and the example notebook
shows something.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from workshop.classroom.files import write_json
from workshop.classroom.folder import FOR_READERS, STATE, Room, made_for_readers, open_room
from workshop.classroom.names import folder_name
from workshop.classroom.state import DoctorSummary, State

NAMES = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Frances", "Grace", "Katherine", "Ken", "Margaret")
EXERCISES = ("ring_all_reduce", "ring_bytes", "alpha_beta", "average_gradients", "ddp_bytes")
TRUTH_BYTES = 6e6
_MINUTE = 60.0


def example_room(folder: Path, now: float) -> Room:
    """A room of ten learners, an hour into lessons 21 and 22; ``now`` in seconds since 1970."""
    room = open_room(folder, "An example")
    choose = random.Random(21)
    for place, name in enumerate(NAMES):
        state = _an_hour(choose, State(name), now - 60 * _MINUTE, pace=0.8 + 0.12 * place)
        summary = DoctorSummary(20, 3, 0)
        if name == "Ken":
            summary = DoctorSummary(18, 3, 1, (("shared memory", "64 MiB in /dev/shm"),))
        state = replace(state, doctor=summary, written_at=now - choose.uniform(5, 90))
        with made_for_readers():
            own = room.learners / folder_name(name)
            own.mkdir()
        write_json(own / STATE, state.as_json(), FOR_READERS)
    return room


def _an_hour(choose: random.Random, state: State, begun: float, pace: float) -> State:
    """Tries, hints and a guess of one learner, until the hour is over."""
    at, done = begun, {}
    answer = {"guess": TRUTH_BYTES * choose.lognormvariate(0, 1), "measured": TRUTH_BYTES, "unit": "B"}
    guess = {"bytes sent": answer}
    for exercise in EXERCISES:
        needed = choose.randint(1, 4) + (3 if exercise == "alpha_beta" else 0)
        for number in range(1, needed + 1):
            at += pace * choose.uniform(1, 6) * _MINUTE
            if at > begun + 60 * _MINUTE:
                return state
            done[exercise] = SimpleNamespace(tries=number, hints=max(0, number - 1), solved=number == needed)
            state = state.updated(done, guess, at)
    return state
