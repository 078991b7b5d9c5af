"""Names that tell nothing of their content: what is kept under `found` can be anything that was looked for.

The rule looks at what code binds: variables, arguments, targets of loops. It leaves out fields, whose object
says what they are about (`Finding.found`), and the answers of exercises, which are learners' code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.rules import Problem, is_answer

VAGUE = frozenset({"said", "told", "found", "asked", "heard", "stuff", "thing"})


def vague_name_problems(package: Path) -> list[Problem]:
    """Every place below ``package`` that binds a name of `VAGUE`."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        if not is_answer(path):
            for line, name in _bound(ast.parse(path.read_text(encoding="utf-8"))):
                if name in VAGUE:
                    problems.append(Problem(path, f"line {line}", f"{name!r}: name the content"))
    return problems


def _bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {one.target for each in classes for one in each.body if isinstance(one, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
