"""``workshop grade``: rerun hand-ins in a sandbox, judge them, say what differs, write the tables."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from workshop.classroom.grading.export import write_all
from workshop.classroom.grading.graded import Graded, Grader, Report, as_json
from workshop.classroom.grading.handins import find_hand_ins
from workshop.classroom.grading.sandbox import MIB, Bounds, NotIsolated, why_not_isolated
from workshop.classroom.names import clean_text
from workshop.cli.counts import count, positive


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop grade``."""
    parser.description = (
        "Judge each exercise of each notebook in FOLDER (LEARNER/ASSIGNMENT/NAME.ipynb, LEARNER/NAME.ipynb "
        "or NAME.ipynb) by the checks of the lessons. The learner's code runs in a sandbox: no network, no "
        "files of yours, bounded time, memory and processes; the checks run outside it. Exit code 0: every "
        "verdict is the one stored in the notebook; 1: some differ, or a hand-in could not be read; 2: a "
        "wrong call, or no sandbox here."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of hand-ins, or one notebook")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write grades.csv (nbgrader's columns), LESSON/final_grades.csv (otter's), exercises.csv and "
        "report.json",
    )
    parser.add_argument(
        "--cells", action="store_true", help="run all cells again, too, and say which fail now"
    )
    limits = parser.add_argument_group("limits", "of one exercise, or of all cells with --cells")
    limits.add_argument(
        "--seconds", type=positive, default=60.0, metavar="S", help="of wall time (default: 60)"
    )
    limits.add_argument("--memory", type=positive, default=4.0, metavar="GIB", help="in all (default: 4)")
    limits.add_argument(
        "--processes", type=count, default=256, metavar="N", help="and threads (default: 256)"
    )
    parser.add_argument(
        "--not-isolated",
        action="store_true",
        help="without a sandbox, where the machine allows none: only for hand-ins that you trust",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of lines")


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.output and options.output.exists() and not options.output.is_dir():
        raise ValueError(f"--output {options.output} is a file; the tables go into a folder")
    hand_ins = find_hand_ins(options.folder)
    bounds = Bounds(options.seconds, int(options.memory * 1024) * MIB, options.processes)
    if not options.not_isolated and (why := why_not_isolated()):
        raise ValueError(
            f"this machine allows no sandbox ({why}), so a hand-in could read your files and use the "
            f"network. Grade "
            "on another, in a container that may make namespaces, or say --not-isolated if you trust all "
            "of them"
        )
    grader = Grader(bounds, not options.not_isolated, options.cells)
    reports = []
    for hand_in in hand_ins:
        say = _nothing if options.json else print
        say(f"{_shown(hand_in.learner)}  {_shown(hand_in.assignment)}  ({_shown(str(hand_in.path))})")
        try:
            report = grader.grade(hand_in, None if options.json else lambda one: print(line(one), flush=True))
        except NotIsolated as error:
            raise ValueError(f"the sandbox could not be made again: {error}") from None
        say(ending(report))
        reports.append(report)
    if options.json:
        print(json.dumps([as_json(report) for report in reports], indent=1))
    if options.output:
        for path in write_all(reports, options.output):
            (_nothing if options.json else print)(f"wrote {path}")
    clean = all(not report.problem and not any(one.differs for one in report.exercises) for report in reports)
    return 0 if clean else 1


def line(one: Graded) -> str:
    """One exercise, as it is judged."""
    differs = f"  DIFFERS: the notebook says {one.stored}" if one.differs else ""
    look_at = f"\n{'':12}look at the cell: it has {_shown(', '.join(one.noticed))}" if one.noticed else ""
    return f"  {one.verdict.state:<9} {one.exercise:<24} {one.verdict.message}{differs}{look_at}"


def ending(report: Report) -> str:
    """What is said of a hand-in at its end."""
    if report.problem:
        return f"  not graded: {_shown(report.problem)}"
    lines = [f"  {report.score:g} of {report.max_score:g}"]
    if not report.isolated:
        lines.append("  not isolated: it could read your files and use the network")
    if report.rerun != "not asked for":
        lines.append(f"  {report.rerun}; {len(report.cells)} fail")
    for cell in report.cells:
        before = "it failed when handed in, too" if cell.failed_before else "it did not fail when handed in"
        lines.append(f"    cell {cell.number}, `{cell.first_line}`: {cell.error} ({before})")
    return "\n".join(lines)


def _shown(text: str) -> str:
    return clean_text(text, 300)


def _nothing(*_: object, **__: object) -> None:
    """Say nothing."""
