"""The rules of the house that no linter knows, each as a function from a folder to the places that break it.

``tests/rules`` runs each on this tree, where it must find nothing, and on a bad example, where it must find
that.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import filterfalse
from pathlib import Path
from typing import NamedTuple

import jupytext
import nbformat
from nbformat import NotebookNode

MODULE_LINES, FUNCTION_LINES, ARGUMENTS = 400, 40, 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Problem(NamedTuple):
    """A place that breaks a rule."""

    path: Path
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.where}: {self.what}"


# ------------------------------------------------------------------------------------------------- the code

_ANSWER = re.compile(r"(stub|solution|answers)\.py")


def is_answer(path: Path) -> bool:
    """Whether a file is cells of an exercise: text that the engine runs, and no module that one imports."""
    return _ANSWER.fullmatch(path.name) is not None and (path.parent / "exercise.toml").is_file()


def size_problems(package: Path) -> list[Problem]:
    """Modules over 400 lines, functions over 40, more than six arguments."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        num_lines = len(text.splitlines())
        if num_lines > MODULE_LINES:
            problems.append(Problem(path, "module", f"{num_lines} lines, at most {MODULE_LINES}"))
        for function in _functions(ast.parse(text)):
            problems += _function_problems(path, function)
    return problems


def _functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def _is_signature(function: Function) -> bool:
    """A body of `...` alone is for type checkers: what a dataclass generates, written out."""
    body = function.body
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", 0) is ...


def _function_problems(path: Path, function: Function) -> Iterator[Problem]:
    if _is_signature(function):
        return
    where = f"line {function.lineno}, {function.name}"
    num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
    num_lines -= _docstring_lines(function)  # a contract in words is not code
    if num_lines > FUNCTION_LINES:
        yield Problem(path, where, f"{num_lines} lines of code, at most {FUNCTION_LINES}")
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    num_arguments = len(names) - (names[:1] in (["self"], ["cls"]))
    if num_arguments > ARGUMENTS:
        yield Problem(path, where, f"{num_arguments} arguments, at most {ARGUMENTS}")


def _docstring_lines(function: Function) -> int:
    if ast.get_docstring(function) is None:
        return 0
    first = function.body[0]
    return (first.end_lineno or first.lineno) - first.lineno + 1


_UNDERLINED = re.compile(r"^ *(Parameters|Args|Attributes|Returns|Raises|Yields)\n *-{3,}$", re.MULTILINE)


def docstring_problems(package: Path) -> list[Problem]:
    """Public modules, classes, functions and methods without a docstring; sections that are underlined."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for section in _UNDERLINED.finditer(text):
            line = text.count("\n", 0, section.start()) + 1
            problems.append(Problem(path, f"line {line}", f"write the section as Google does: {section[1]}:"))
        if is_answer(path):  # written as a learner writes a cell
            continue
        if not _is_private_path(path.relative_to(package)) and ast.get_docstring(tree) is None:
            problems.append(Problem(path, "module", "no docstring"))
        for node in _public(tree.body):
            if ast.get_docstring(node) is None:
                problems.append(Problem(path, f"line {node.lineno}, {node.name}", "no docstring"))
    return problems


def _is_private_path(path: Path) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in path.parts)


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    """Public definitions of a module or class; not functions inside functions."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def swallow_problems(package: Path) -> list[Problem]:
    """``except:`` at all, and ``except Exception`` (or BaseException) that does nothing with the error."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            if node.type is None:
                problems.append(Problem(path, f"line {node.lineno}", "bare except: name the error"))
            elif _is_broad(node.type) and all(_does_nothing(statement) for statement in node.body):
                problems.append(Problem(path, f"line {node.lineno}", "a broad except that says nothing"))
    return problems


def _is_broad(caught: ast.expr) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in names)


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


# A home, a checkout or a scratch folder of one machine; /tmp alone is every machine's.
_ONE_MACHINE = re.compile(r"(?<![\w.~$}])/(?:home|Users|root|work|mnt|scratch)/[\w.-]+|/tmp/[\w.-]+/[\w.-]+")
_TEXT_SUFFIXES = frozenset(
    {
        "",
        ".cfg",
        ".css",
        ".def",
        ".ipynb",
        ".js",
        ".json",
        ".md",
        ".py",
        ".sbatch",
        ".sh",
        ".toml",
        ".txt",
        ".yml",
    }
)


def unused_problems(package: Path, users: Iterable[Path]) -> list[Problem]:
    """Public names of modules that stand nowhere else in the package, and in none of ``users``.

    A word is enough, be it in a docstring or a lesson's text: what nobody calls but a page tells of is there
    for readers. Tests are no users.
    """
    made: dict[str, list[Path]] = {}
    times: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        times.update(_WORD.findall(text))
        if not is_answer(path):
            for name in map("".join, _MADE.findall(_LONG_TEXT.sub("", text))):
                made.setdefault(name, []).append(path)
    for path in users:
        times.update(_WORD.findall(path.read_text(encoding="utf-8")))
    return [
        Problem(path, name, "only tests use it, and no page tells of it")
        for name, paths in made.items()
        if times[name] <= len(paths)
        for path in paths
    ]


_LONG_TEXT = re.compile(r'"{3}.*?"{3}', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w+")
_MADE = re.compile(r"^(?:(?:async )?def |class )([A-Za-z]\w+)|^([A-Za-z]\w+)(?:: [^=\n]+)? = ", re.MULTILINE)


def machine_path_problems(files: list[Path]) -> list[Problem]:
    """Paths that exist on one machine only."""
    problems = []
    for path in files:
        if path.suffix not in _TEXT_SUFFIXES or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            match = _ONE_MACHINE.search(line)
            if match:
                problems.append(Problem(path, f"line {number}", f"a path of one machine: {match[0]}"))
    return problems


# ------------------------------------------------------------------------------------------------ the rings

# Imports that close a ring and may: (the module that imports, the one it imports) -> why. Best is none.
ALLOWED_RINGS: dict[tuple[str, str], str] = {}

Imports = dict[str, dict[str, int]]  # module -> what it imports -> the line that does


def ring_problems(package: Path, allowed: Mapping[tuple[str, str], str] = ALLOWED_RINGS) -> list[Problem]:
    """Modules of a package that import one another, directly or through others, whenever they do so.

    An import counts wherever it stands: at the top, under ``TYPE_CHECKING`` or in a function. Two modules
    that need one another's types share something that belongs below both. Front doors are no ring: an
    ``__init__`` may import its own modules as long as none of them asks it for a name, and what it opens by
    a string (``import_module``) is not counted.

    allowed: imports that may close a ring, each with its reason; one that closes none is a problem too.
    Every ring has at least one import in what is returned; of rings that share it, the first is shown.
    """
    paths = modules_of(package)
    graph = {module: _imports(module, path, paths) for module, path in paths.items()}
    problems = []
    for importer, imported in allowed:
        if imported not in graph.get(importer, {}) or not _leads(graph, imported, importer):
            what = f"the import of {imported} closes no ring: take it off the allowed ones"
            problems.append(Problem(paths.get(importer, package), importer, what))
    for importer, imported in allowed:
        graph.get(importer, {}).pop(imported, None)
    while ring := _ring(graph):
        line = graph[ring[0]].pop(ring[1])
        problems.append(Problem(paths[ring[0]], f"line {line}", "a ring: " + " -> ".join(ring)))
    return problems


def modules_of(package: Path) -> dict[str, Path]:
    """The file of each module by its full name; an exercise's cells are none."""
    paths = {}
    for path in filterfalse(is_answer, sorted(package.rglob("*.py"))):
        parts = path.relative_to(package.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def _imports(module: str, path: Path, known: Mapping[str, Path]) -> dict[str, int]:
    """The known modules that a module imports anywhere in its file, each with the first line that does."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    lines: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node, package):
                nearest = name if name in known else name.rpartition(".")[0]  # a name in a module: the module
                if nearest in known and nearest != module:
                    lines.setdefault(nearest, node.lineno)
    return lines


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Full names that a statement in a module of ``package`` imports: of modules, or of what is in them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    return [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]


def _ring(graph: Imports) -> list[str]:
    """Modules each of which imports the next, the last being the first again; empty: there is no ring."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # it puts who is imported before who imports
    return []


def _leads(graph: Imports, start: str, goal: str) -> bool:
    """Whether imports lead from one module to the other."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph.get(module, {})
    return goal in seen


# --------------------------------------------------------------------------------------------- the notebooks


def _notebooks(lessons: Path) -> list[Path]:
    return sorted(p for p in lessons.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)


def _source_of(notebook: Path, lessons: Path) -> Path:
    return (lessons / "source" / notebook.relative_to(lessons)).with_suffix(".py")


def pairing_problems(lessons: Path) -> list[Problem]:
    """Halves without the other, and pairs whose cells differ in kind, text or tags."""
    problems = []
    notebooks = _notebooks(lessons)
    expected = {_source_of(notebook, lessons): notebook for notebook in notebooks}
    for source in sorted({*expected, *(lessons / "source").rglob("*.py")}):
        if source not in expected:
            problems.append(Problem(source, "pair", "has no notebook: run `make notebooks`"))
        elif not source.exists():
            problems.append(Problem(expected[source], "pair", f"has no source at {source}"))
        else:
            problems += _pair_problems(source, expected[source])
    return problems


def _pair_problems(source: Path, notebook: Path) -> list[Problem]:
    left = [_key(cell) for cell in jupytext.read(source, fmt="py:percent").cells]
    right = [_key(cell) for cell in nbformat.read(notebook, as_version=4).cells]
    # Read apart: nbformat silently gives new ids to cells that share one.
    ids = [cell.get("id") for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]
    if len(set(ids)) < len(ids) or None in ids:
        return [Problem(notebook, "ids", "cells without an id, or with the same one")]
    if left == right:
        return []
    number = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return [Problem(notebook, f"cell {number + 1}", f"differs from {source.name}: run `make notebooks`")]


def _key(cell: NotebookNode) -> tuple[str, str, tuple[str, ...]]:
    return cell.cell_type, cell.source, tuple(cell.metadata.get("tags", ()))


def execution_problems(lessons: Path) -> list[Problem]:
    """Lessons not executed, or not in order, or that store a warning, or an error without the tag for it."""
    problems = []
    for path in _notebooks(lessons):
        code = [
            c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code" and c.source.strip()
        ]
        if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
            problems.append(
                Problem(path, "counts", "not executed once from top to bottom: run `make notebooks`")
            )
        if not any(cell.outputs for cell in code):
            problems.append(Problem(path, "outputs", "none: committed without having been executed"))
        for number, cell in enumerate(code, 1):
            at = f"code cell {number}"
            has_error = any(output.output_type == "error" for output in cell.outputs)
            if has_error and "raises-exception" not in cell.metadata.get("tags", ()):
                problems.append(Problem(path, at, "a stored error without raises-exception"))
            if any(output.get("name") == "stderr" for output in cell.outputs):
                problems.append(Problem(path, at, "stored words on stderr: no part of a lesson"))
    return problems


CODE_COLUMNS = 88  # what a page shows of a code cell before it clips


def long_line_problems(lessons: Path) -> list[Problem]:
    """Code lines of lessons that a page would clip."""
    problems = []
    for path in _notebooks(lessons):
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1):
            lines = cell.source.splitlines() if cell.cell_type == "code" else []
            for line in lines:
                if len(line) > CODE_COLUMNS:
                    what = f"{len(line)} columns, at most {CODE_COLUMNS}: {line.strip()}"
                    problems.append(Problem(path, f"cell {number}", what))
    return problems


_SHELL = re.compile(r"^\s*(?:!|%%?(?:bash|sh|script|system|sx)\b|\w[\w, ]*=\s*!)")


def shell_problems(lessons: Path) -> list[Problem]:
    """``!command``, ``%%bash`` and their kin: when they fail, nbval is green."""
    problems = []
    for path in _notebooks(lessons):
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1):
            lines = cell.source.splitlines() if cell.cell_type == "code" else []
            for line in filter(_SHELL.match, lines):
                problems.append(Problem(path, f"cell {number}", f"a shell line: {line.strip()}"))
    return problems
