"""What Sphinx lacks for these pages: formulas that need no script, and cells with magics in their colours.

Formulas become MathML, which browsers draw themselves; a page loads nothing from elsewhere. ``docs/conf.py``
names this module.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexer import inherit
from pygments.lexers.python import PythonLexer
from pygments.token import Name
from sphinx.application import Sphinx


class CellLexer(PythonLexer):
    """Python with lines of magics: ``%%ranks -n 4`` stands above a program like any other."""

    name = "cell"
    aliases = ("cell",)
    tokens = {"root": [(r"^%%?[a-zA-Z].*$", Name.Decorator), inherit]}  # noqa: RUF012  as Pygments asks


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer ``mathml`` and the lexer ``cell``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_lexer("cell", CellLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
