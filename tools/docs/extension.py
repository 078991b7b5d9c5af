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
from sphinx.domains.python import ObjectEntry, PythonDomain
from sphinx.environment import BuildEnvironment


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


class RememberingPythonDomain(PythonDomain):
    """Sphinx's domain, that looks for a name once.

    The types in a signature are names, most of them none of ours (``int``, ``Any``). For each, and each time,
    Sphinx goes through all names that there are: a seventh of the whole build.
    """

    def find_obj(
        self,
        env: BuildEnvironment,
        modname: str,
        classname: str,
        name: str,
        type: str | None,  # noqa: A002  as Sphinx calls it
        searchmode: int = 0,
    ) -> list[tuple[str, ObjectEntry]]:
        """As Sphinx's; remembered as long as no name comes along."""
        if getattr(self, "_count", None) != len(self.objects):
            self._count, self._known = len(self.objects), dict[tuple, list]()
        asked = (modname, classname, name, type, searchmode)
        if asked not in self._known:
            self._known[asked] = super().find_obj(env, modname, classname, name, type, searchmode)
        return list(self._known[asked])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer ``mathml`` and the lexer ``cell``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_lexer("cell", CellLexer)
    app.add_domain(RememberingPythonDomain, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
