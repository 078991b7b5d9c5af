"""``workshop doctor``: can this machine run the workshop, and if not, what is to be done.

Each check is a small function in ``checks_software.py``, ``checks_machine.py``, ``checks_cluster.py`` or
``checks_ranks.py`` that returns a `Finding`. A check that takes longer than its limit (a network disk that
hangs, a driver that does not answer) is a finding too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

VERDICTS = ("ok", "note", "no")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One verdict: ``ok``, ``note`` (works, but know this) or ``no`` (will not work), and what to ``do``."""

    verdict: str
    found: str
    do: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict
        assert self.do or self.verdict != "no", "a no says what to do"


@dataclasses.dataclass(frozen=True)
class Check:
    """A named check with its time limit in seconds."""

    name: str
    examine: Callable[[], Finding]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Line:
    """A finding under the name of its check."""

    name: str
    verdict: str
    found: str
    do: str


class Diagnosis(tuple[Line, ...]):
    """All lines; shows itself as text in a notebook and in a terminal."""

    __slots__ = ()

    @property
    def can_run(self) -> bool:
        """True when there is no ``no``."""
        return not any(line.verdict == "no" for line in self)

    def __repr__(self) -> str:
        return "\n".join([*map(render, self), summary(self)])


def all_checks() -> list[Check]:
    """The registry, in the order in which one thing needs another."""
    from workshop.cli import checks_cluster, checks_machine, checks_ranks, checks_software

    return [*checks_software.CHECKS, *checks_machine.CHECKS, *checks_cluster.CHECKS, *checks_ranks.CHECKS]


def diagnose(
    checks: Iterable[Check] | None = None, on_line: Callable[[Line], None] | None = None
) -> Diagnosis:
    """Run the checks one after the other; ``on_line`` gets each line as soon as it is known."""
    lines = []
    for check in all_checks() if checks is None else checks:
        finding = _within_limit(check)
        line = Line(check.name, **dataclasses.asdict(finding))
        lines.append(line)
        if on_line is not None:
            on_line(line)
    return Diagnosis(lines)


def _within_limit(check: Check) -> Finding:
    """The finding of ``check``, or a ``no`` when the time is up or the system refuses."""
    future: Future[Finding] = Future()

    def work() -> None:
        try:
            future.set_result(check.examine())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits
            future.set_exception(error)

    # A daemon: a call that hangs in the kernel must not keep the doctor from ending.
    threading.Thread(target=work, name=f"doctor: {check.name}", daemon=True).start()
    try:
        return future.result(timeout=check.seconds)
    except FutureTimeoutError:
        return Finding(
            "no", f"no answer in {check.seconds:g} s", "look at what this part of the machine is doing"
        )
    except OSError as error:
        return Finding("no", f"the system refused: {error}", "see the message; ask who runs the machine")


def render(line: Line) -> str:
    """The line for a terminal; what to do stands below it."""
    text = f"{line.verdict:<4}  {line.name:<18}  {line.found}"
    return text + (f"\n{'':26}do: {line.do}" if line.do else "")


def summary(diagnosis: Diagnosis) -> str:
    """The last line."""
    counts = ", ".join(f"{sum(line.verdict == v for line in diagnosis)} {v}" for v in VERDICTS)
    can = "this machine can run the workshop" if diagnosis.can_run else "not yet: see each no above"
    return f"{counts}: {can}"


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.json:
        diagnosis = diagnose()
        print(json.dumps([dataclasses.asdict(line) for line in diagnosis], indent=1))
    else:
        diagnosis = diagnose(on_line=lambda line: print(render(line), flush=True))
        print(summary(diagnosis))
    return 0 if diagnosis.can_run else 1
