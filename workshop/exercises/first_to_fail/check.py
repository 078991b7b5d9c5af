"""Exercise: which of many ranks is the culprit? The one that fails by itself, else the one that is behind.

What a rank says after another went away ("connection closed by peer") is an effect, however early it was
written down. And where nobody failed, the ranks that wait in a collective wait for the one that has made the
fewest. This is what `workshop.launch.failures.judge` and NCCL's flight recorder do.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown


def _record(rank: int, ended: str, message: str = "", seconds: float = 60.0, calls: int = 10) -> dict:
    return {"rank": rank, "ended": ended, "message": message, "seconds": seconds, "calls": calls}


GONE = "RuntimeError: Connection closed by peer"
RESET = "ConnectionResetError: Connection reset by peer"
CASES: tuple[tuple[str, list[dict], int], ...] = (
    (
        "rank 2 raised, the others lost it",
        [
            _record(0, "raised", GONE, 5.01),
            _record(1, "raised", RESET, 5.00),
            _record(2, "raised", "ValueError: a broken record", 5.02),
        ],
        2,
    ),
    (
        "rank 1 was killed, rank 0 raised over it",
        [_record(0, "raised", RESET, 7.2), _record(1, "killed", "SIGKILL", 7.3), _record(2, "waiting")],
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


def _mistaken(records: list[dict], answer: float, wanted: int) -> str:
    """What an answer that is not right has looked at."""
    by_rank = {record["rank"]: record for record in records}
    if answer not in by_rank:
        return "There is no such rank."
    record = by_rank[int(answer)]
    if record["message"] in (GONE, RESET):
        return "It lost its connection because another rank had gone first. That is an effect."
    if by_rank[wanted]["ended"] == "waiting":
        return "It waits for a rank that has entered fewer collectives: that one is to blame."
    if record["ended"] == "waiting":
        return "It only waits. Another rank has failed by itself."
    return "It failed by itself, but later than another rank."


def check(names: dict[str, Any]) -> str:
    """Five failures, in the order of the ranks and in the other."""
    for story, records, wanted in CASES:
        for order in (records, records[::-1]):
            made = Call((order,))
            answer = number(call(names["first_to_fail"], "first_to_fail", made), "first_to_fail(records)")
            if answer != wanted:
                raise Wrong(
                    f"{story}: `first_to_fail` gave {shown(answer)}; wanted {wanted}. "
                    + _mistaken(records, answer, wanted)
                )
    return "Five failures, each with its culprit."
