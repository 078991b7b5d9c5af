"""Published tables."""

from __future__ import annotations

import pytest

from workshop.facts.published import FOLDER, published_table


def test_every_row_of_every_table_has_its_source() -> None:
    tables = sorted(FOLDER.glob("*.csv"))
    assert tables
    for table in tables:
        rows = published_table(table.stem)
        assert rows
        assert all(row["source"] and None not in row and None not in row.values() for row in rows), table.name


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'allreduce_busbw_by_payload'"):
        published_table("allreduce_busbw")
