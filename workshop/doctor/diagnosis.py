"""The doctor: can this machine run the workshop, and if not, what is to be done.

Each check is a small function in `doctor.software`, `doctor.machine`, `doctor.host`, `doctor.cluster` or
`doctor.ranks` that returns a `Finding`. A check that takes longer than its limit (a network disk that hangs,
a driver that does not answer) is a finding too.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from workshop.doctor import cluster, host, machine, ranks, software
from workshop.doctor.findings import Check, Diagnosis, Finding, Line


def all_checks() -> list[Check]:
    """The registry, in the order in which one thing needs another."""
    return [*software.CHECKS, *machine.CHECKS, *host.CHECKS, *cluster.CHECKS, *ranks.CHECKS]


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
