"""``workshop room``: open, show and push for an instructor; join, leave, share-code and keep-code for a
learner.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from workshop.classroom.folder import find_room, open_room
from workshop.classroom.push import composed, push
from workshop.classroom.seat import (
    doctor_summary,
    join,
    named_room,
    taken_seat,
    user,
    words_before_joining,
    words_before_sharing_code,
)
from workshop.classroom.view import RoomView, code_of, look
from workshop.exercises.engine.guess import Guesses, guesses_file
from workshop.exercises.engine.progress import Progress, progress_file


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop room``."""
    parser.description = (
        "A room is a folder that all of a course can reach; there is no server. The instructor opens, "
        "shows and pushes; a learner joins (knowingly: it says what is shared), leaves, shares answers or "
        "keeps them. Exit code 0: done; 1: not joined, for nobody agreed; 2: a wrong call."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    opened = actions.add_parser("open", help="instructor: make a room in a folder of your own")
    opened.add_argument("folder", type=Path, metavar="FOLDER")
    opened.add_argument(
        "--title", default="", metavar="WORDS", help="what learners see (default: the folder's)"
    )
    opened.add_argument(
        "--group", default="", metavar="GROUP", help="who teaches too: this group reads along"
    )
    shown = actions.add_parser("show", help="instructor: who is stuck where, statistics, guesses")
    shown.add_argument("folder", type=Path, metavar="FOLDER")
    shown.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    shown.add_argument("--code", nargs=2, metavar=("LEARNER", "EXERCISE"), help="an answer that is shared")
    _add_push(actions)
    joined = actions.add_parser("join", help="learner: share progress and guesses with a room")
    joined.add_argument("folder", nargs="?", default="", metavar="FOLDER", help="(default: WORKSHOP_ROOM)")
    joined.add_argument("--name", default="", metavar="NAME", help="what you are called there")
    joined.add_argument("--agree", action="store_true", help="join; without it you are asked, or only told")
    joined.add_argument("--no-doctor", action="store_true", help="do not look at this machine")
    left = actions.add_parser("leave", help="learner: share nothing any more")
    left.add_argument("--forget", action="store_true", help="remove what was written, too")
    shared = actions.add_parser("share-code", help="learner: share your answers with the instructor")
    shared.add_argument("--agree", action="store_true", help="do it; without it you are asked, or only told")
    actions.add_parser("keep-code", help="learner: share your answers no more")


def _add_push(actions: argparse._SubParsersAction) -> None:
    pushed = actions.add_parser("push", help="instructor: a hint, a solution or some words, to one or to all")
    pushed.add_argument("folder", type=Path, metavar="FOLDER")
    pushed.add_argument("--exercise", default="", metavar="NAME", help="what it is about")
    pushed.add_argument("--hint", type=int, default=0, metavar="N", help="the exercise's own hint, from 1")
    pushed.add_argument("--solution", action="store_true", help="the reference solution")
    pushed.add_argument("--text", default="", metavar="WORDS", help="words of your own")
    pushed.add_argument("--to", default="", metavar="LEARNER", help="a name or a folder (default: everybody)")


def run(options: argparse.Namespace) -> int:
    """The command."""
    actions = {"open": _open, "show": _show, "push": _push, "join": _join, "leave": _leave}
    try:
        return actions.get(options.action, _code)(options)
    except PermissionError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None


def _open(options: argparse.Namespace) -> int:
    room = open_room(options.folder, options.title, options.group)
    print(
        f"The room {room.title!r} is open. What learners share can be read by: each of them, {room.readers}."
    )
    print(f"Learners: export WORKSHOP_ROOM={room.folder}, then in a notebook: %room join")
    print(f"You: workshop room show {room.folder}")
    return 0


def _show(options: argparse.Namespace) -> int:
    view = look(options.folder)
    if options.code:
        learner, exercise = options.code
        print(code_of(view.room, view.named(learner).folder, exercise), end="")
    else:
        print(json.dumps(as_json(view), indent=1) if options.json else view)
    return 0


def as_json(view: RoomView) -> dict[str, Any]:
    """The view as data."""
    return {
        "title": view.room.title,
        "learners": [
            {
                **one.state.as_json(),
                "folder": one.folder,
                "user": one.user,
                "stuck": (one.stuck(view.now) or (None,))[0],
            }
            for one in view.learners
        ],
        "exercises": [dataclasses.asdict(one) for one in view.statistics()],
        "guesses": [
            {**dataclasses.asdict(one), "truth": one.truth, "histogram": one.histogram()}
            for one in view.guesses()
        ],
        "refused": view.refused,
    }


def _push(options: argparse.Namespace) -> int:
    room = find_room(options.folder)
    kind, text = composed(options.exercise, hint=options.hint, solution=options.solution, text=options.text)
    to = look(room).named(options.to) if options.to else None
    pushed = push(room, kind, text, exercise=options.exercise, to=to.folder if to else "")
    print(f"Pushed to {to.state.name if to else 'everybody'}; seen at their next %exercise or %progress:")
    print(pushed)
    work = to.state.exercises.get(options.exercise) if to else None
    if to and work and options.hint and options.hint <= work.hints:
        print(f"\n{to.state.name} has had this hint: {work.hints} so far.")
    return 0


def _join(options: argparse.Namespace) -> int:
    folder, name = options.folder or named_room(), options.name or user()
    print(words_before_joining(find_room(folder), name, not options.no_doctor))
    if not _agreed(options):
        return 1
    seat = join(folder, name)
    progress, guesses = Progress(progress_file()), Guesses(guesses_file())
    seat.update(progress.so_far(), guesses.kept(), None if options.no_doctor else doctor_summary())
    print("\n".join([f"Joined. {seat}", *seat.complaints()]))
    return 0


def _leave(options: argparse.Namespace) -> int:
    seat = taken_seat()
    if seat is None:
        raise ValueError("you are in no room: workshop room join FOLDER")
    seat.leave(forget=options.forget)
    print(f"Left: nothing is written to {seat.consent.folder} any more.")
    return 0


def _code(options: argparse.Namespace) -> int:
    seat = taken_seat()
    if seat is None:
        raise ValueError("you are in no room: workshop room join FOLDER")
    if options.action == "share-code":
        print(words_before_sharing_code(find_room(seat.consent.folder)))
        if not _agreed(options):
            return 1
    seat.share_code(options.action == "share-code")
    print("\n".join([str(seat), *seat.complaints()]))
    return 0


def _agreed(options: argparse.Namespace) -> bool:
    """Whether the learner says yes: by the flag, or when asked; without a terminal nobody is asked."""
    if options.agree:
        return True
    if not sys.stdin.isatty():
        print("Nothing was written. --agree does it.")
        return False
    return input("Do you agree? [y/N] ").strip().lower() in ("y", "yes")
