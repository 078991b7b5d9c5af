"""A room of many learners who write at once, and an instructor who looks: is anything lost, how long does a
look take.

    python -m benchmarks.classroom --learners 30 --minutes 10 --write data/measurements/classroom.json

Each learner is a process with a home of their own. It tries exercises, takes hints and guesses through the
same calls as a notebook, and after each writes its state to the room, then thinks for a moment. Meanwhile the
instructor looks at the room every two seconds, pushes a word to all now and then, and the benchmark kills a
learner with SIGKILL every few seconds, in the middle of whatever they do, and lets them come back. At the end
what the instructor sees is compared with what the learners did: each learner's ledger, a line written before
each deed, and each home's own progress. A learner who was killed may have one deed in the ledger that never
happened.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, load_average, machine
from workshop.classroom.folder import Room, open_room
from workshop.classroom.push import composed, push
from workshop.classroom.seat import Seat, join, taken_seat
from workshop.classroom.view import RoomView, look
from workshop.exercises import all_exercises
from workshop.exercises.engine.guess import Guesses, Question, guesses_file
from workshop.exercises.engine.progress import Progress, progress_file

LOOK_SECONDS = 2.0
PUSH_SECONDS = 60.0
KILL_SECONDS = 5.0
GUESSES = 40  # questions in the course


@dataclass
class Outcome:
    """What a simulation came to; ``lost`` names what the instructor does not see as it was."""

    learners: int
    seconds: float
    deeds: int
    killed: int
    looks_seconds: list[float] = field(default_factory=list)
    looks_cpu_seconds: list[float] = field(default_factory=list)
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    learners_cpu_seconds: float = 0.0
    view: RoomView | None = None  # the last look; the next one reads what has changed since


def learner(folder: Path, home: Path, number: int, until: float | int, think_seconds: float) -> None:
    """One learner's process: until a time, or until there are so many deeds."""
    begun = len(_ledger(home))
    choose = random.Random(1000 * number + begun)
    os.environ["WORKSHOP_HOME"] = str(home)
    home.mkdir(exist_ok=True)
    progress, guesses = Progress(progress_file()), Guesses(guesses_file())
    seat = taken_seat() or join(folder, f"Learner {number % 20}")  # some have the same name
    exercises = all_exercises()
    deeds = begun
    while deeds < until if isinstance(until, int) else time.time() < until:
        _deed(choose, home, (progress, guesses), exercises[min(deeds // 4, len(exercises) - 1)])
        _write(seat, progress, guesses, home)
        deeds += 1
        time.sleep(choose.uniform(0, 2 * think_seconds))
    _write(seat, progress, guesses, home)


def _deed(choose: random.Random, home: Path, kept: tuple[Progress, Guesses], exercise: Any) -> None:
    progress, guesses = kept
    kind = choose.choice(("wrong", "wrong", "right", "hint", "guess"))
    question = Question(f"question {choose.randrange(GUESSES)}", "B")
    value = choose.lognormvariate(10, 2)
    with (home / "ledger").open("a") as ledger:
        ledger.write(json.dumps([kind, question.name if kind == "guess" else exercise.name, value]) + "\n")
    if kind == "guess":
        guesses.ask(question, value)
        guesses.beside(question.name, 22026.0)
    elif kind == "hint":
        progress.next_hint(exercise.name, len(exercise.hints))
    else:
        progress.tried(exercise.name, kind == "right")


def _write(seat: Seat, progress: Progress, guesses: Guesses, home: Path) -> None:
    seat.update(progress.so_far(), guesses.kept())
    for one in seat.news():
        with (home / "news").open("a") as news:
            news.write(f"{one.number}\n")
    for sentence in [*seat.complaints(), *progress.complaints()]:
        with (home / "complaints").open("a") as complaints:
            complaints.write(sentence + "\n")


def _ledger(home: Path) -> list[list[Any]]:
    """The deeds so far; a line that a kill cut off is none."""
    deeds = []
    with contextlib.suppress(FileNotFoundError):
        for line in (home / "ledger").read_text().splitlines():
            with contextlib.suppress(ValueError):
                deeds.append(json.loads(line))
    return deeds


def simulate(
    base: Path, learners: int, until: float | int, *, think_seconds: float, kill_seconds: float = KILL_SECONDS
) -> Outcome:
    """A room in ``base`` with so many learners, until a time (float) or for so many deeds each (int)."""
    room = open_room(base / "room", "A simulated room")
    push(room, *composed("", text="word 0"))
    started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    running = {_begin(base, room, n, until, think_seconds): n for n in range(learners)}
    killed: set[int] = set()
    outcome = Outcome(learners, 0.0, 0, 0)
    pushed, next_look, next_kill = 1, 0.0, kill_seconds
    choose, few = random.Random(0), isinstance(until, int)
    while running:
        passed = time.monotonic() - started
        if passed >= next_look:
            _look(room, outcome)
            next_look = time.monotonic() - started + LOOK_SECONDS
            if passed >= PUSH_SECONDS * pushed and not few and time.time() < until - 20:  # all shall hear it
                push(room, *composed("", text=f"word {pushed}"))
                pushed += 1
        if passed >= next_kill and (few or time.time() < until - 5):
            pid = choose.choice(sorted(running))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            number = running.pop(pid)
            killed.add(number)
            outcome.killed += 1
            running[_begin(base, room, number, until, think_seconds)] = number
            next_kill = passed + kill_seconds
        for pid in [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]]:
            del running[pid]
        time.sleep(0.05)
    outcome.seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome.learners_cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    _compare(base, room, outcome, killed, pushed)
    return outcome


def _begin(base: Path, room: Room, number: int, until: float | int, think_seconds: float) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            learner(room.folder, base / f"home-{number}", number, until, think_seconds)
            code = 0
        finally:
            os._exit(code)
    return child


def _look(room: Room, outcome: Outcome) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    view = outcome.view = look(room, before=outcome.view)
    str(view)
    view._repr_html_()
    outcome.looks_seconds.append(time.perf_counter() - begun)
    outcome.looks_cpu_seconds.append(time.process_time() - cpu)
    # A seat taken this moment, whose first state is not yet there, is no file that could not be read.
    outcome.refused += sum(why != "nothing has been written there yet" for _, why in view.refused)


def _compare(base: Path, room: Room, outcome: Outcome, killed: set[int], pushed: int) -> None:
    """Lost is what a ledger or a home's progress has and the instructor's view has not."""
    _look(room, outcome)
    seen = {one.folder: one.state for one in look(room).learners}
    for number in range(outcome.learners):
        home = base / f"home-{number}"
        deeds = _ledger(home)
        outcome.deeds += len(deeds)
        state = seen.get(json.loads((home / "room.json").read_text())["learner"])
        if state is None:
            outcome.lost.append(f"learner {number} is not seen")
            continue
        progress = Progress(home / "progress.json")
        shown, kept = (_counts(one) for one in (state.exercises, progress.so_far()))
        guessed = {name: row["guess"] for name, row in Guesses(home / "guesses.json").kept().items()}
        tries = sum(kind in ("wrong", "right") for kind, _, _ in deeds)
        missing = tries - sum(one[0] for one in shown.values())
        if shown != kept or {name: one.guess for name, one in state.guesses.items()} != guessed:
            outcome.lost.append(f"learner {number}: the room differs from the home")
        if not 0 <= missing <= outcome.killed * (number in killed):
            outcome.lost.append(f"learner {number}: {missing} tries of {tries}")
        if (home / "complaints").exists():
            outcome.lost.append(f"learner {number}: {(home / 'complaints').read_text()}")
        news = (home / "news").read_text().split() if (home / "news").exists() else []
        if number not in killed and len(news) < pushed:
            outcome.lost.append(f"learner {number} has heard {len(news)} of {pushed} pushes")


def _counts(works: Mapping[str, Any]) -> dict[str, tuple[int, int, bool]]:
    return {name: (one.tries, one.hints, one.solved) for name, one in works.items()}


def main() -> None:
    """Run it and print, or write, the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--think", type=float, default=0.5, metavar="S", help="mean seconds between two deeds"
    )
    parser.add_argument("--write", type=Path, metavar="FILE")
    options = parser.parse_args()
    all_exercises()
    with tempfile.TemporaryDirectory(prefix="classroom-") as folder:
        until = time.time() + 60 * options.minutes
        done = simulate(Path(folder), options.learners, until, think_seconds=options.think)
        sizes = [path.stat().st_size for path in Path(folder, "room", "learners").glob("*/state.json")]
    looks = sorted(done.looks_seconds)
    record = {
        "command": f"python -m benchmarks.classroom --learners {options.learners} "
        f"--minutes {options.minutes:g} --think {options.think:g}",
        "commit": commit(),
        "machine": machine(()),
        "learners": done.learners,
        "seconds": round(done.seconds, 1),
        "deeds_written": done.deeds,
        "learners_killed_while_writing": done.killed,
        "lost": done.lost,
        "files_refused": done.refused,
        "looks": len(looks),
        "look_seconds": {
            "median": round(statistics.median(looks), 4),
            "slowest": round(looks[-1], 4),
            "last": round(done.looks_seconds[-1], 4),
        },
        "look_cpu_seconds": {
            "median": round(statistics.median(done.looks_cpu_seconds), 4),
            "slowest": round(max(done.looks_cpu_seconds), 4),
        },
        "state_bytes": {"median": statistics.median(sizes), "largest": max(sizes)},
        "cpu_milliseconds_a_deed": round(1e3 * done.learners_cpu_seconds / max(done.deeds, 1), 2),
        "load_average_at_the_end": load_average(),
    }
    text = json.dumps(record, indent=1) + "\n"
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
