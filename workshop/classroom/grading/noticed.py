"""What an answer on ranks names that none of its kind needs: where to look first.

On ranks the learner's function and the code that tries it share a process, so an answer could replace that
code and be believed (SECURITY.md). To reach it takes a module, a frame, a name in a text, or something
written into another's namespace. Reading the cell finds those, or the tools to hide them. It proves nothing
either way: an honest answer may log to a file, and a program can be hidden from any list.
"""

from __future__ import annotations

import ast

EXPECTED = frozenset(
    "torch math copy io collections itertools functools operator typing dataclasses time numpy re "
    "pathlib".split()
)
_BY_NAME = frozenset(
    "exec eval compile __import__ globals locals vars setattr delattr open breakpoint".split()
)
_LEADS_OUT = frozenset(
    "sys os modules builtins inspect gc importlib ctypes workshop report open write_text write_bytes".split()
)
_FRAMES = ("f_", "gi_", "tb_", "cr_", "ag_")  # of frames, and of what leads to one
_PLAIN = frozenset(("__name__", "__init__"))


def noticed(source: str) -> list[str]:
    """Names in a cell, as they stand there, in order and once each; none for what is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    modules = {name for node in ast.walk(tree) for name in _modules(node)}
    places: dict[str, tuple[int, int]] = {}
    for node in ast.walk(tree):
        for name in _found(node, modules):
            places.setdefault(name, (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))
    return sorted(places, key=lambda name: places[name])


def _modules(node: ast.AST) -> list[str]:
    """What an import binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(each.asname or each.name).partition(".")[0] for each in node.names]
    return []


def _found(node: ast.AST, modules: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [f"import {each.name}" for each in node.names if not _expected(each.name)]
    if isinstance(node, ast.ImportFrom):
        inside = any(each.name.startswith("_") or each.name in _LEADS_OUT for each in node.names)
        return [f"from {node.module} import"] if inside or not _expected(node.module or "") else []
    if isinstance(node, ast.Name):
        return [node.id] if node.id in _BY_NAME or node.id.startswith("__") else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        of_a_module = bool(node.args) and _root(node.args[0]) in modules
        return [ast.unparse(node)[:60]] if of_a_module else []
    if isinstance(node, ast.Attribute):
        written = isinstance(node.ctx, ast.Store | ast.Del) and _root(node) in modules
        private = node.attr.startswith(("_", *_FRAMES)) and node.attr not in _PLAIN
        return [ast.unparse(node)[:60]] if written or private or node.attr in _LEADS_OUT else []
    return []


def _expected(module: str) -> bool:
    if module.startswith("workshop.models"):
        return True  # the lessons' models, which a few answers name
    parts = module.split(".")
    return parts[0] in EXPECTED and not any(part.startswith("_") for part in parts)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
