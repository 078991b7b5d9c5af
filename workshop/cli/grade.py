"""``workshop grade``: rerun hand-ins in a sandbox, judge them, say what differs, write the tables."""

from __future__ import annotations

import argparse
import json

from workshop.classroom.grading.export import write_all
from workshop.classroom.grading.graded import Graded, Grader, Report, as_json
from workshop.classroom.grading.handins import find_hand_ins
from workshop.classroom.grading.sandbox import MIB, Bounds, NotIsolated, why_not_isolated
from workshop.classroom.names import clean_text


def run(options: argparse.Namespace) -> int:
    """The command."""
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
        said = _nothing if options.json else print
        said(f"{_shown(hand_in.learner)}  {_shown(hand_in.assignment)}  ({_shown(str(hand_in.path))})")
        try:
            report = grader.grade(hand_in, None if options.json else lambda one: print(line(one), flush=True))
        except NotIsolated as error:
            raise ValueError(f"the sandbox could not be made again: {error}") from None
        said(ending(report))
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
