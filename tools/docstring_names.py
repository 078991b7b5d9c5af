"""Names in docstrings that lead nowhere: what is renamed or moved stays behind in words.

Looked at are the names that docstrings set between backticks: files (``child/cut.py``) and dotted names whose
beginning is a module of the package (`launch.messages.Start`, `messages.Start` beside it). A name of another
library is not ours to check, nor is a file without a folder, which may be the reader's own.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.rules import modules_of

_QUOTED = re.compile(r"`{1,2}([^`\n]+?)`{1,2}")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_FILE = re.compile(r"(?:[\w-]+/)+(?P<name>[\w-]+)\.(?:py|md|toml|csv|json|ipynb)")
# Ends of files that look like attributes.
_SUFFIXES = frozenset(
    ("py", "toml", "json", "csv", "md", "pt", "log", "yaml", "sh", "sbatch", "qsub", "ipynb", "jsonl")
)

Names = dict[str, "ModuleNames"]


@dataclass
class ModuleNames:
    """What a module defines, and what its classes have; None for a class that may have more from above."""

    defined: set[str] = field(default_factory=set)
    members: dict[str, set[str] | None] = field(default_factory=dict)


def dead_names(package: Path, root: Path) -> Iterator[tuple[Path, int, str]]:
    """File, line of the docstring's beginning, and name, of each that does not exist any more.

    Args:
        package: the folder of the package whose docstrings are read.
        root: of the tree that its file names start from, wholly or by their ends.
    """
    paths = modules_of(package)
    known = {module: _names_of(path) for module, path in paths.items()}
    files = [f"/{path.relative_to(root).as_posix()}" for path in root.rglob("*.*") if _kept(path, root)]
    for module, path in paths.items():
        for line, arguments, text in _docstrings(ast.parse(path.read_text(encoding="utf-8"))):
            for quoted in filter(lambda words: words.split(".")[0] not in arguments, _QUOTED.findall(text)):
                for name in _dead(quoted.strip(), module, known, files):
                    yield path, line, name


def _kept(path: Path, root: Path) -> bool:
    return not any(part.startswith(".") or part == "build" for part in path.relative_to(root).parts)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, set[str], str]]:
    """Line, names of a function's arguments, and text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            arguments = {arg.arg for arg in ast.walk(getattr(node, "args", tree)) if isinstance(arg, ast.arg)}
            if text:
                yield getattr(node, "lineno", 1), arguments if hasattr(node, "args") else set(), text


def _names_of(path: Path) -> ModuleNames:
    """Top-level names, those in branches too; in a front door also those that it gives late, by strings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = ModuleNames()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.members[node.name] = _members(node)
    for statement in _at_top(tree.body):
        names.defined |= _bound(statement)
    if path.name == "__init__.py":
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        names.defined |= {text for text in texts if isinstance(text, str)}
    return names


def _at_top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _at_top(statement.body)
            yield from _at_top(getattr(statement, "orelse", []))


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return {
        node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _members(kind: ast.ClassDef) -> set[str] | None:
    """What a class has by its own text; None where it has bases, from which more may come."""
    if any(
        getattr(base, "id", getattr(base, "attr", "")) not in ("Protocol", "NamedTuple")
        for base in kind.bases
    ):
        return None
    names = set[str]()
    for statement in kind.body:
        names |= _bound(statement)
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def _dead(text: str, module: str, known: Mapping[str, ModuleNames], files: list[str]) -> Iterator[str]:
    """The names in one piece between backticks that should be ours and are not there."""
    if file := _FILE.fullmatch(text):
        ours = any(f"/{text.split('/')[0]}/" in path for path in files)  # a folder of this tree
        if ours and not file["name"].isupper() and not any(path.endswith(f"/{text}") for path in files):
            yield file[0]
        return
    match = _DOTTED.match(text)
    if match is None or text[match.end() : match.end() + 1] not in ("", "("):
        return
    parts = match[0].split(".")
    if parts[-1] in _SUFFIXES or _in_python(parts):
        return
    above = module.split(".")
    bases = [above[:depth] for depth in range(len(above) + 1)]
    answers = [_is_there([*base, *parts], len(base), known) for base in bases]
    if False in answers and True not in answers:
        yield match[0]


def _in_python(parts: list[str]) -> bool:
    """Of Python's own library: `time.perf_counter` beside a room called time."""
    return parts[0] in sys.stdlib_module_names and hasattr(importlib.import_module(parts[0]), parts[1])


def _is_there(parts: list[str], own: int, known: Mapping[str, ModuleNames]) -> bool | None:
    """Whether a full name exists; None where not even the first of its given parts is a module of ours."""
    depth = max((at for at in range(1, len(parts) + 1) if ".".join(parts[:at]) in known), default=0)
    if depth <= own:
        return None
    names, rest = known[".".join(parts[:depth])], parts[depth:]
    if not rest:
        return True
    if rest[0] not in names.defined:
        return False
    members = names.members.get(rest[0])
    return members is None or len(rest) == 1 or rest[1] in members
