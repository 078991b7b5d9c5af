"""The parsers of ``workshop room`` and ``workshop grade``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_room(commands: argparse._SubParsersAction) -> None:
    """``workshop room``, with what an instructor does and what a learner does."""
    room = commands.add_parser(
        "room",
        help="a course's shared folder: who is stuck where, and hints from the instructor",
        description="A room is a folder that all of a course can reach; there is no server. The "
        "instructor opens, "
        "shows and pushes; a learner joins (knowingly: it says what is shared), leaves, shares answers "
        "or keeps "
        "them. Exit code 0: done; 1: not joined, for nobody agreed; 2: a wrong call.",
    )
    actions = room.add_subparsers(dest="action", required=True, metavar="ACTION")
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


def add_grade(commands: argparse._SubParsersAction) -> None:
    """``workshop grade``."""
    grade = commands.add_parser(
        "grade",
        help="rerun hand-ins in a sandbox and judge their exercises",
        description="Judge each exercise of each notebook in FOLDER (LEARNER/ASSIGNMENT/NAME.ipynb, "
        "LEARNER/NAME.ipynb or NAME.ipynb) by the checks of the lessons. The learner's code runs in a "
        "sandbox: "
        "no network, no files of yours, bounded time, memory and processes; the checks run outside it. "
        "Exit code "
        "0: every verdict is the one stored in the notebook; 1: some differ, or a hand-in could not be "
        "read; 2: a "
        "wrong call, or no sandbox here.",
    )
    grade.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of hand-ins, or one notebook")
    grade.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write grades.csv (nbgrader's columns), LESSON/final_grades.csv (otter's), exercises.csv and "
        "report.json",
    )
    grade.add_argument(
        "--cells", action="store_true", help="run all cells again, too, and say which fail now"
    )
    limits = grade.add_argument_group("limits", "of one exercise, or of all cells with --cells")
    limits.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of wall time (default: 60)")
    limits.add_argument("--memory", type=float, default=4.0, metavar="GIB", help="in all (default: 4)")
    limits.add_argument("--processes", type=int, default=256, metavar="N", help="and threads (default: 256)")
    grade.add_argument(
        "--not-isolated",
        action="store_true",
        help="without a sandbox, where the machine allows none: only for hand-ins that you trust",
    )
    grade.add_argument("--json", action="store_true", help="print a JSON list instead of lines")
