"""Exercise: which of many ranks is the culprit? The one that fails by itself, else the one that is behind.

What a rank says after another went away ("connection closed by peer") is an effect, however early it was
written down. And where nobody failed, the ranks that wait in a collective wait for the one that has made the
fewest. This is what `workshop.launch.failures.judge` and NCCL's flight recorder do.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, number, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
`records` holds one dictionary for each rank: `rank`, `ended` ("raised", "killed", or "waiting" where it was
still at work), `message`, `seconds` (when it ended; clocks differ a little), and `calls` (collectives it has
entered). A rank whose message speaks of a lost connection only tells that another went away. Write
`first_to_fail(records)`: the rank that is to blame."""

STUB = '''\
def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; where none did, the one that the others wait for."""
    by_themselves = [record for record in records if ...]
    if by_themselves:
        return ...
    return ...
'''

SOLUTION = '''\
def first_to_fail(records: list[dict]) -> int:
    """The rank that failed by itself; where none did, the one that the others wait for."""
    by_themselves = [
        record
        for record in records
        if record["ended"] != "waiting" and "connection" not in record["message"].lower()
    ]
    if by_themselves:
        return min(by_themselves, key=lambda record: record["seconds"])["rank"]
    return min(records, key=lambda record: record["calls"])["rank"]
'''


def _record(rank: int, ended: str, message: str = "", seconds: float = 60.0, calls: int = 10) -> dict:
    return {"rank": rank, "ended": ended, "message": message, "seconds": seconds, "calls": calls}


GONE = "RuntimeError: Connection closed by peer"
CASES: tuple[tuple[str, list[dict], int], ...] = (
    (
        "rank 2 raised, the others lost it",
        [
            _record(0, "raised", GONE, 5.01),
            _record(1, "raised", GONE, 5.00),
            _record(2, "raised", "ValueError: a broken record", 5.02),
        ],
        2,
    ),
    (
        "rank 1 was killed, rank 0 raised over it",
        [_record(0, "raised", GONE, 7.2), _record(1, "killed", "SIGKILL", 7.3), _record(2, "waiting")],
        1,
    ),
    (
        "nobody failed; rank 1 has made one collective less",
        [_record(0, "waiting", calls=42), _record(1, "waiting", calls=41), _record(2, "waiting", calls=42)],
        1,
    ),
    (
        "two failed by themselves",
        [
            _record(0, "raised", "OutOfMemoryError: 4 MiB", 9.4, 30),
            _record(1, "raised", "OutOfMemoryError: 8 MiB", 8.1, 30),
            _record(2, "waiting", calls=31),
        ],
        1,
    ),
    (
        "everybody lost a connection; rank 3 is behind: its host has gone",
        [_record(rank, "raised", GONE, 3.0 + 0.1 * rank, 20) for rank in range(3)]
        + [_record(3, "waiting", calls=19)],
        3,
    ),
)


def _mistaken(records: list[dict], found: float, wanted: int) -> str:
    """What an answer that is not right has looked at."""
    by_rank = {record["rank"]: record for record in records}
    if found not in by_rank:
        return "There is no such rank."
    record = by_rank[int(found)]
    if record["message"] == GONE:
        return "Its connection was closed: by somebody else, who had gone first. That is an effect."
    if by_rank[wanted]["ended"] == "waiting":
        return "It waits for a rank that has entered fewer collectives: that one is to blame."
    if record["ended"] == "waiting":
        return "It only waits. Another rank has failed by itself."
    return "It failed by itself, but later than another."


def _check(names: dict[str, Any]) -> str:
    """Five failures, in the order of the ranks and in the other."""
    for story, records, wanted in CASES:
        for told in (records, records[::-1]):
            made = Call((told,))
            found = number(call(names["first_to_fail"], "first_to_fail", made), "first_to_fail(records)")
            if found != wanted:
                raise Wrong(
                    f"{story}: `first_to_fail` gave {shown(found)}; wanted {wanted}. "
                    + _mistaken(records, found, wanted)
                )
    return "Five failures, each with its culprit."


WAITS_FIRST = """\
    waiting = [record for record in records if record["ended"] == "waiting"]
    if waiting:
        return waiting[0]["rank"]
"""


def _answer(line: str) -> str:
    return f"def first_to_fail(records):\n    return {line}\n"


FIRST_TO_FAIL = Exercise(
    name="first_to_fail",
    day=6,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Leave out the ranks that only tell of a lost connection, and those that were still at work.",
        'Of what is left take the earliest `seconds`: `min(..., key=lambda record: record["seconds"])`.',
        "If nothing is left, everybody waits for the rank with the fewest `calls`.",
    ),
    solution=SOLUTION,
    defines=("first_to_fail",),
    check=_check,
    shows="Causes before effects, and who is behind is who is waited for.",
    wrong_answers=(
        WrongAnswer(
            "the earliest", _answer('min(records, key=lambda r: r["seconds"])["rank"]'), "That is an effect"
        ),
        WrongAnswer(
            "only failures",
            SOLUTION.replace('min(records, key=lambda record: record["calls"])["rank"]', "0"),
            "has entered fewer collectives",
        ),
        WrongAnswer(
            "the latest",
            SOLUTION.replace("return min(by_themselves", "return max(by_themselves"),
            "later than another",
        ),
        WrongAnswer(
            "who is behind",
            SOLUTION.replace("    if by_themselves:\n", WAITS_FIRST + "    if by_themselves:\n"),
            "It only waits",
        ),
    ),
)
