"""An exercise cell as text: what it leaves open, what it defines, and running it in the notebook.

Line numbers are the notebook's own: the ``%%exercise`` line is line 1, so the learner's code begins on
line 2.
"""

from __future__ import annotations

import ast
import linecache
from typing import Any

FIRST_LINE = "# %%exercise {name}\n"


def as_numbered(name: str, source: str) -> str:
    """The cell with its magic line as a comment, so that Python counts lines as the notebook does."""
    return FIRST_LINE.format(name=name) + source


def file_name(name: str) -> str:
    """The name under which the cell is compiled, and by which its frames are known in a traceback."""
    return f"<exercise {name}>"


def run(name: str, source: str, namespace: dict[str, Any]) -> None:
    """Run the cell in ``namespace``; where its last line is an expression, its value is shown, as usual."""
    filename = remember(name, source)
    tree = parse(name, source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
    if last is not None:
        shown = ast.Interactive(body=[last])
        exec(compile(shown, filename, "single", dont_inherit=True), namespace)


def parse(name: str, source: str) -> ast.Module:
    """The cell's syntax tree; SyntaxError carries the notebook's line number."""
    return ast.parse(as_numbered(name, source), filename=file_name(name))


def remember(name: str, source: str) -> str:
    """Make the cell's lines known to tracebacks and to `inspect`; returns the name that stands for it."""
    filename = file_name(name)
    text = as_numbered(name, source)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return filename


def open_places(tree: ast.Module) -> list[int]:
    """Lines on which a `...` waits to be replaced.

    A `...` inside square brackets (``x[..., 0]``, ``tuple[int, ...]``) is Python's own and is left alone.
    """
    own = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        for part in ast.walk(node.slice)
    }
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value is Ellipsis and id(node) not in own
    )


def defined_functions(tree: ast.Module) -> list[str]:
    """Names of the functions defined at the top of the cell, in order."""
    return list(dict.fromkeys(node.name for node in tree.body if isinstance(node, ast.FunctionDef)))


def definitions_only(tree: ast.Module) -> ast.Module:
    """The cell without what it merely does: imports, functions, classes and assignments stay.

    A function is taken to the ranks with what it stands on, but a trial call at the foot of the cell must not
    run again there.
    """
    kept = (
        ast.Import,
        ast.ImportFrom,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.Assign,
        ast.AnnAssign,
    )
    return ast.Module(body=[node for node in tree.body if isinstance(node, kept)], type_ignores=[])
