"""Sentences of exercises as HTML: what is marked, and what stays as it is written."""

import pytest

from workshop.exercises.engine.prose import code_block, inline, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("call `f(a,\nb)` once", "call <code>f(a, b)</code> once"),  # a name may be broken over two lines
        ("by *first fit* and *sum*", "by <em>first fit</em> and <em>sum</em>"),
        ("2*3*4 and 2 * 3 * 4", "2*3*4 and 2 * 3 * 4"),
        ("a / N**alpha + b / D**beta", "a / N**alpha + b / D**beta"),
        ("`*args`, `**kwargs`", "<code>*args</code>, <code>**kwargs</code>"),
        ("a < b & c", "a &lt; b &amp; c"),
    ],
)
def test_marks(text: str, shown: str) -> None:
    assert inline(text) == shown


def test_dollars_are_no_formula() -> None:
    """A notebook sets what stands between two dollars of one text as a formula; no element is inside one."""
    shown = inline("$head and $port")
    assert shown == "<span>$</span>head and <span>$</span>port"
    assert "$" not in shown.replace("<span>$</span>", "")


def test_code_keeps_its_lines_and_columns() -> None:
    block = code_block("if a < b:\n    c()")
    assert "if a &lt; b:\n    c()" in block
    assert "monospace" in block
    assert table(["name"], [["<b>"]]).count("&lt;b&gt;") == 1
