"""Where tests stand: in the room of what they test, one file an idea, and no module out of their reach.

Not one file of tests for each module: a test is of what a room promises, and most promises are kept by
several modules. But a file that carries a module's name is looked for where the module is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.rules import modules_of

# Folders that test no room of the package, but the tree, or the house as a whole on what others run.
NO_ROOMS = frozenset(("attacks", "browser", "cluster", "gpu", "loaded", "packaging", "rules", "tools"))
_DOTTED = re.compile(r"\bworkshop(?:\.\w+)+")
_OPEN = re.compile(r"\bworkshop(?:\.\{?\w+\}?)*\.\{\w+\}(?:\.\{?\w+\}?)*")
_FROM = re.compile(r"\bfrom (workshop(?:\.\w+)*) import (\w+)")


def misplaced(package: Path, tests: Path) -> Iterator[str]:
    """Folders that are no room's, rooms without tests, and files named as a module of another room."""
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    folders = {path.name for path in tests.iterdir() if path.is_dir() and any(path.rglob("test_*.py"))}
    yield from (f"tests/{name}: no room of that name" for name in sorted(folders - rooms - NO_ROOMS))
    yield from (f"{package.name}/{name}: has no folder in tests" for name in sorted(rooms - folders))
    rooms_of: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        inside = path.relative_to(package).parts
        if len(inside) > 1:
            name = path.parent.name if path.stem == "__init__" else path.stem
            rooms_of.setdefault(name, set()).add(inside[0])
    for path in sorted(tests.rglob("test_*.py")):
        room, name = path.relative_to(tests).parts[0], path.stem.removeprefix("test_")
        if room in rooms and room not in rooms_of.get(name, {room}):
            where = ", ".join(f"tests/{other}" for other in sorted(rooms_of[name]))
            file = path.relative_to(tests.parent)
            yield f"{file}: a module {name} is not in this room; {where}, or another name"


def out_of_reach(package: Path, tests: Iterable[Path]) -> list[str]:
    """Modules that none of these files imports or names, nor anything that they reach.

    A name in a text counts like an import: of a program that a test writes, of a module run by ``-m``. So
    does a name with places left open, ``f"workshop.cli.{command}"``, for all that it may become.
    """
    modules = modules_of(package)
    uses = {module: set(_used(path, modules)) for module, path in modules.items()}
    waiting = [module for path in tests for module in _used(path, modules)]
    reached: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += uses[module]
    reached |= {f"{module}.__main__" for module in reached}  # what ``-m`` runs
    return sorted(module for module in modules if module not in reached)


def _used(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules that a file imports or names; with each the front doors on the way to it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    words = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # docstrings use nothing
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            names += _DOTTED.findall(node.value)
            names += [f"{module}.{name}" for module, name in _FROM.findall(node.value)]
        elif isinstance(node, ast.JoinedStr):
            names += _opened(node, modules)
    for name in names:
        parts = name.split(".")
        yield from (known for at in range(1, len(parts) + 1) if (known := ".".join(parts[:at])) in modules)


def _opened(text: ast.JoinedStr, modules: Iterable[str]) -> Iterator[str]:
    """Modules whose names an f-string may come to, any one word standing in each of its open places."""
    written = "".join(str(part.value) if isinstance(part, ast.Constant) else "{open}" for part in text.values)
    for name in _OPEN.findall(written):
        pattern = re.compile(re.escape(name).replace(re.escape("{open}"), r"\w+"))
        yield from filter(pattern.fullmatch, modules)
