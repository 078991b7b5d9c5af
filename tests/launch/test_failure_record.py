"""An exception as data: what no stream can write, and what nobody can read to its end."""

from __future__ import annotations

import pytest

from workshop.launch.child.failure_record import describe, tellable

HALF = "half a pair \ud800"


def test_half_of_a_surrogate_pair_is_told_as_its_escape() -> None:
    record = describe(ValueError(HALF), "cell")
    assert record.message == "half a pair \\ud800"
    record.message.encode()


def test_a_message_ends_somewhere() -> None:
    record = describe(ValueError("x" * 5_000_000), "cell")
    assert len(record.message) < 11_000
    assert "4,990,000 characters left out" in record.message


@pytest.mark.parametrize("text", [HALF, "x" * 5_000_000], ids=["half", "long"])
def test_the_kernels_reply_can_be_written(text: str) -> None:
    str(tellable(ValueError(text))).encode()
    fine = ValueError("as it is")
    assert tellable(fine) is fine
    assert tellable(None) is None
