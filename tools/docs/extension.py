"""What Sphinx lacks for these pages: formulas that need no script, and cells with magics in their colours.

Formulas become MathML, which browsers draw themselves; a page loads nothing from elsewhere. ``docs/conf.py``
names this module. It also remembers what Sphinx works out anew for each page, and each time finds the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from pygments.lexer import inherit
from pygments.lexers.python import PythonLexer
from pygments.token import Name
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry, PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.search.en import SearchEnglish


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
    """Sphinx's domain, that looks for a name once, and only where one ends so.

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
            self._last_parts = {_last_part(each) for each in self.objects}
        if _last_part(name.removesuffix("()")) not in self._last_parts:
            return []  # whatever is put before a name, what it finds ends as it does
        key = (modname, classname, name, type, searchmode)
        if key not in self._known:
            self._known[key] = super().find_obj(env, modname, classname, name, type, searchmode)
        return list(self._known[key])


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


class RememberingSearch(SearchEnglish):
    """Sphinx's English, that finds the stem of a word once, and not once for each page that has it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.stem = functools.cache(super().stem)  # type: ignore[method-assign]


def _with_titles_only(app: Sphinx, _page: str, _template: str, context: dict[str, Any], _: Any) -> None:
    """Let the theme's tree of all titles, which every page has, be made of titles.

    Sphinx copies every heading of every page for it, page for page, and drops what is no title from the copy.
    """
    whole: Callable[..., str] = context["toctree"]

    def toctree(**options: Any) -> str:
        if not options.get("titles_only"):
            return whole(**options)
        tocs = app.env.tocs
        app.env.tocs = _titles(app.env)
        try:
            return whole(**options)
        finally:
            app.env.tocs = tocs

    context["toctree"] = toctree


def _titles(env: BuildEnvironment) -> dict[str, nodes.bullet_list]:
    """Of each page its title, and below it the lists of other pages: what Sphinx leaves of it. Made once."""
    known: dict[str, nodes.bullet_list] | None = getattr(env, "titles_of_tocs", None)
    if known is None:
        known = {name: _title(toc) for name, toc in env.tocs.items()}
        env.titles_of_tocs = known  # type: ignore[attr-defined]
    return known


def _title(toc: nodes.bullet_list) -> nodes.bullet_list:
    toc = toc.deepcopy()
    for item in toc.children:
        if len(item) > 1:
            lists = list(item.findall(addnodes.toctree))
            item[1:] = [nodes.bullet_list("", *lists)] if lists else []
    return toc


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer ``mathml`` and the lexer ``cell``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_lexer("cell", CellLexer)
    app.add_domain(RememberingPythonDomain, override=True)
    app.add_search_language(RememberingSearch)
    app.connect("html-page-context", _with_titles_only, priority=400)  # before the theme's, at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
