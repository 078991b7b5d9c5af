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


@pytest.mark.parametrize(
    "cell", ["3", "-1,024", "1e-05", "15.6T", "7B", "inf", "12%", "1.2 x", "450 GB/s", "4.11 / s", "3 of 4",
             "7.8% to 9.3%", "6.01 to 7.50 ms", "7 min 29 s", "-", ""],
)  # fmt: skip
def test_a_number_is_set_to_the_right_and_not_broken_from_its_unit(cell: str) -> None:
    table = Table(["", "x"], [["a", cell], ["b", "1.0"]])
    assert f'<td style="text-align:right;white-space:nowrap">{cell}</td>' in table._repr_html_()


@pytest.mark.parametrize("cell", ["0 and 4", "8 x 1 x 32", "2:4", "4 bits, NF4", "never", "a 3"])
def test_words_are_set_to_the_left(cell: str) -> None:
    assert "right" not in Table(["x"], [[cell], ["1.0"]])._repr_html_()


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
