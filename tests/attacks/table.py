"""The table of attacks: each row is a test that tried it, as another user, and what happened then.

`UPDATE_ATTACKS=1 pytest tests/attacks` writes ``data/measurements/attacks.csv`` and the table in ``SECURITY.md``
anew; without it a row that no longer holds fails its test.
"""

import csv
import functools
import json
import os
import re
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "data" / "measurements" / "attacks.csv"
PAGE = ROOT / "SECURITY.md"
COLUMNS = ("attempt", "as whom", "what happened")
ADA, MALLORY = 54321, 54322  # two users of a machine; ada works, mallory wants to be in her place
SECONDS = 60.0

attempts: list[str] = []


def as_user(uid: int, act: Callable, *arguments):
    """What ``act`` returns in a process of that user; what it raises comes as ``"Type: message"``.

    The process is a fork: modules must be imported before, for the user may not reach the interpreter's.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.umask(0o022)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = act(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent judges
            said = f"{type(error).__name__}: {error}"
        with os.fdopen(writing, "w") as file:
            json.dump(said, file)
        os._exit(0)
    os.close(writing)
    deadline, said = time.monotonic() + SECONDS, b""
    try:
        while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            block = os.read(reading, 1 << 16)
            if not block:
                return json.loads(said)
            said += block
        raise TimeoutError(f"{act} did not end in {SECONDS:g} s")
    finally:
        os.close(reading)
        end(child)


def begin_as(uid: int, act: Callable, *arguments) -> int:
    """A process of that user that goes on until it is ended; its number."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            act(*arguments)
        finally:
            os._exit(0)
    return child


def end(child: int) -> None:
    """End a process, if it is still there, and take its exit code."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def attack(attempt: str, whom: str = "another user"):
    """A test that returns, in a sentence, what happened; it must be what the table says."""

    def decorate(test):
        assert attempt not in attempts, attempt
        attempts.append(attempt)

        @functools.wraps(test)
        def tried(*arguments, **fixtures):
            happened = plain(test(*arguments, **fixtures))
            rows = {row["attempt"]: row for row in read()}
            if os.environ.get("UPDATE_ATTACKS"):
                rows[attempt] = dict(zip(COLUMNS, (attempt, whom, happened), strict=True))
                write(rows)
            assert rows.get(attempt) == {"attempt": attempt, "as whom": whom, "what happened": happened}

        return tried

    return decorate


def plain(text: str) -> str:
    """The sentence without what differs from run to run."""
    text = text.replace(f"user {MALLORY}", "mallory").replace(f"user {ADA}", "ada")
    return re.sub(r"/tmp/attack-\w+", "/shared", text)


def read() -> list[dict[str, str]]:
    """The rows of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(rows: dict[str, dict[str, str]]) -> None:
    """Write the table, in the order of the tests, and into the page."""
    kept = [rows[attempt] for attempt in attempts if attempt in rows]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    PAGE.write_text(page(PAGE.read_text("utf-8"), kept), "utf-8")


def page(text: str, rows: list[dict[str, str]]) -> str:
    """The page with the table of these rows in place of its own."""
    lines = ["| attempt | as whom | what happened |", "| --- | --- | --- |"]
    for row in rows:
        lines.append(
            "| " + " | ".join(row[name].replace("|", "\\|").replace("<", "&lt;") for name in COLUMNS) + " |"
        )
    before = text.partition("| attempt |")[0]
    return before + "\n".join(lines) + "\n"
