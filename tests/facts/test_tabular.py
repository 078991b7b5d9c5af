"""Tables align, escape and refuse ragged rows."""

from __future__ import annotations

import pytest

from workshop.facts.tabular import Table


def test_numbers_stand_on_the_right_and_words_on_the_left() -> None:
    table = Table(["what", "size"], [["a", "1.0 MiB"], ["long name", "12.5 MiB"]], "caption", "note")
    assert str(table).splitlines() == [
        "caption", "what           size", "---------  --------", "a           1.0 MiB", "long name  12.5 MiB", "note",
    ]  # fmt: skip
    assert repr(table) == str(table)


def test_html_is_escaped() -> None:
    html = Table(["a<b"], [["<script>"]], note="one\ntwo")._repr_html_()
    assert "<script>" not in html
    assert "a&lt;b" in html
    assert "one<br>two" in html


def test_a_ragged_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells and the head 2"):
        Table(["a", "b"], [["x"]])


def test_a_narrow_terminal_gets_the_columns_in_blocks() -> None:
    table = Table(
        ["", "so many stages each", "size"], [["1", "4", "1.0 MiB"], ["2", "16", "2.0 MiB"]], "a b", "c d"
    )
    assert table.within(20).splitlines() == [
        "a b", "       so",
        "     many", "   stages", "     each     size", "-  ------  -------",
        "1       4  1.0 MiB", "2      16  2.0 MiB", "c d",
    ]  # fmt: skip
    assert table.within(12).splitlines() == [
        "a b",
        "       so", "     many", "   stages", "     each", "-  ------", "1       4", "2      16",
        "", "      size", "-  -------", "1  1.0 MiB", "2  2.0 MiB", "c d",
    ]  # fmt: skip
