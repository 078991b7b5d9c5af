"""Names of torch that the oldest supported version lacks, and where this tree uses one.

    python tools/torch_names.py list > 2.11.txt                       in an environment with each version
    python tools/torch_names.py compare 2.11.txt 2.12.txt 2.13.txt    writes tools/torch_new_names.txt
    python tools/torch_names.py                                       where the tree uses such a name
    python tools/torch_names.py missing                               what it uses and this torch lacks

The package promises a range of versions, and everybody works with the newest. So the record holds what came
after the oldest: modules, their names, attributes of classes (``torch.nn.Module.name``), parameters of
functions (``torch.load(name``) and operators, each with the version that brought it. A test looks for them in
everything that a reader runs. A use is fine where the code asks first: in a `try` that catches `ImportError`
or `AttributeError`, or below an `if hasattr(...)`. Methods of values are mypy's business: it knows types, and
`make test-torch` runs it beside the torch that is there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.gpu_rules import cells  # noqa: E402

RECORD = Path(__file__).with_name("torch_new_names.txt")
ROOMS = ("workshop", "benchmarks", "examples", "tests", "tools")
# Parts of torch that a training program has nothing to do with.
SKIPPED = frozenset(
    "testing onnx ao contrib quantization jit package benchmark hipify rpc fx mps xpu mtia".split()
)
IMPORT = re.compile(r"(import|from) torch\b[^(]*$")
OPERATORS = ("aten::", "c10d::", "_c10d_functional::", "prim::")


class Use(NamedTuple):
    """A name of torch in a source, from ``torch`` on; with the keywords where it is called."""

    name: str
    keywords: tuple[str, ...]
    line: int


# ---------------------------------------------------------------------------- what a torch has


def listed(private: Iterable[str]) -> set[str]:
    """Every name of the torch that is installed: its public modules, these private ones, the operators."""
    import torch

    modules = [torch.__name__, *private]
    for info in pkgutil.walk_packages(torch.__path__, "torch.", onerror=str):
        parts = info.name.split(".")
        if not (SKIPPED & set(parts) or any(part.startswith("_") for part in parts)):
            modules.append(info.name)
    names: set[str] = set()
    for name in modules:
        # Some want what is not installed here, some refuse the machine.
        with contextlib.suppress(Exception):
            names |= set(names_of(importlib.import_module(name)))
    for whole in torch._C._dispatch_get_all_op_names():
        if whole.startswith(OPERATORS):
            names.add("torch.ops." + whole.partition(".")[0].replace("::", "."))
    return names


def names_of(module: types.ModuleType) -> Iterator[str]:
    """The module, what belongs to it, the attributes of its classes, the parameters of its functions."""
    yield module.__name__
    shown = set(getattr(module, "__all__", ()))
    for name, value in sorted(vars(module).items()):
        whose = getattr(value, "__module__", None)
        own = whose == module.__name__ or name in shown or hasattr(module, "__path__")
        private = name.startswith("_") and (name.startswith("__") or module.__name__ != "torch")
        if private or isinstance(value, types.ModuleType | TypeVar):
            continue
        if isinstance(value, type | types.FunctionType) and not (own and str(whose).startswith("torch")):
            continue  # what this module itself imports
        path = f"{module.__name__}.{name}"
        yield path
        yield from (f"{path}({parameter}" for parameter in parameters(value))
        if isinstance(value, type):
            for inner, attribute in sorted(vars(value).items()):
                if not inner.startswith("_"):
                    yield f"{path}.{inner}"
                    yield from (f"{path}.{inner}({parameter}" for parameter in parameters(attribute))


def parameters(value: object) -> list[str]:
    """The names of a function's parameters; none where Python cannot tell them."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Enum)):
        return []
    try:
        return [
            name for name in inspect.signature(value).parameters if name not in ("self", "args", "kwargs")
        ]
    except (TypeError, ValueError):
        return []


# ---------------------------------------------------------------------------- the record


def brought(lists: Mapping[str, set[str]]) -> dict[str, str]:
    """Each name that the first version lacks and the last one has, and the version that brought it.

    What stands in a name that is new itself is left out.
    """
    versions = list(lists)
    known, new = set(lists[versions[0]]), dict[str, str]()
    for version in versions[1:]:
        for name in sorted(lists[version] - known):
            if not any(outer in new for outer in outer_names(name)):
                new[name] = version
        known |= lists[version]
    return {name: version for name, version in sorted(new.items()) if name in lists[versions[-1]]}


def outer_names(name: str) -> Iterator[str]:
    """What a name stands in: ``torch.a.b(c`` is in ``torch.a.b``, in ``torch.a`` and in ``torch``."""
    whole, called, _ = name.partition("(")
    if called:
        yield whole
    while "." in whole:
        whole = whole.rpartition(".")[0]
        yield whole


def recorded(text: str) -> dict[str, str]:
    """The record as `write_record` made it: names, and the version of each."""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {name: version for version, name in lines}


def write_record(paths: list[Path]) -> None:
    """From lists whose files are called by their versions, the oldest first."""
    lists = {path.stem: set(path.read_text("utf-8").split()) for path in paths}
    head = f"# {' '.join(lists)}: what the first of these torches lacks (tools/torch_names.py)\n"
    lines = (f"{version} {name}\n" for name, version in brought(lists).items())
    RECORD.write_text(head + "".join(lines), "utf-8")


# ---------------------------------------------------------------------------- what a source uses


class Uses(ast.NodeVisitor):
    """Collects the names of torch in one piece of source, but for those that it asks for first."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[Use] = []
        self.aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    if one.name.split(".")[0] == "torch":
                        self.aliases[one.asname or "torch"] = one.name if one.asname else "torch"
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                for one in node.names:
                    self.aliases[one.asname or one.name] = f"{node.module}.{one.name}"
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        """A module is a name."""
        self.found += [Use(one.name, (), node.lineno) for one in node.names if one.name.startswith("torch.")]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Each name of the module."""
        if (node.module or "").split(".")[0] == "torch":
            self.found += [Use(f"{node.module}.{one.name}", (), node.lineno) for one in node.names]

    def visit_Try(self, node: ast.Try) -> None:
        """A body that may fail for want of a name is not looked at."""
        caught = {
            one.id
            for handler in node.handlers
            for one in ast.walk(handler.type or ast.Name("BaseException"))
            if isinstance(one, ast.Name)
        }
        asks = caught & {"ImportError", "ModuleNotFoundError", "AttributeError"}
        for child in (*(() if asks else node.body), *node.handlers, *node.orelse, *node.finalbody):
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        """Nor is a body whose condition asks by `hasattr` whether a name is there."""
        if "hasattr(" not in ast.unparse(node.test):
            self.generic_visit(node)
            return
        turned = isinstance(node.test, ast.UnaryOp)
        for child in node.body if turned else node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A parameter hides what was imported under its name."""
        hidden = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)} & set(self.aliases)
        kept = {name: self.aliases.pop(name) for name in hidden}
        self.generic_visit(node)
        self.aliases |= kept

    def visit_Call(self, node: ast.Call) -> None:
        """A name with the keywords that it is given."""
        name = named(node.func, self.aliases)
        if name is None:
            self.visit(node.func)
        else:
            keywords = tuple(one.arg for one in node.keywords if one.arg)
            self.found.append(Use(name, keywords, node.lineno))
        for child in (*node.args, *node.keywords):
            self.visit(child)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A whole chain from its root."""
        name = named(node, self.aliases)
        if name is None:
            self.generic_visit(node)
        else:
            self.found.append(Use(name, (), node.lineno))


def named(node: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """The name of a chain of attributes whose root is torch or was imported from it."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in aliases:
        return ".".join([aliases[node.id], *reversed(parts)])
    return None


def uses_in(text: str) -> list[Use]:
    """The uses in a piece of source; none where it is no Python by itself."""
    if "torch" not in text:
        return []
    try:
        return Uses(ast.parse(text)).found
    except SyntaxError:  # a broken answer of an exercise, a cell that shows a mistake
        return []


def sources(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every module of the tree and every cell of a lesson, with the path to say."""
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            yield str(path.relative_to(root)), path.read_text("utf-8")
    for path in sorted((root / "notebooks" / "source").rglob("*.py")):
        imports = ""
        for cell in cells(path):
            yield str(path.relative_to(root)), imports + cell
            # The next cells use what this one imports. Ranks import for themselves, and lose nothing by it.
            imports += "".join(line + "\n" for line in cell.splitlines() if IMPORT.match(line))


def too_new(uses: Iterable[Use], new: Mapping[str, str]) -> list[str]:
    """Each use of a name of the record, with the version that it wants."""
    problems = []
    for use in uses:
        names = (*(f"{use.name}({word}" for word in use.keywords), use.name, *outer_names(use.name))
        problems += [
            f"{name.replace('(', '(..., ')} is of torch {new[name]}" for name in names if name in new
        ]
    return problems


# ---------------------------------------------------------------------------- the installed torch


def private_modules() -> list[str]:
    """Private modules of torch that the tree imports."""
    used = {use.name for _, text in sources() for use in uses_in(text)}
    outer = {name for one in used for name in (one, *outer_names(one))}
    return sorted(name for name in outer if "._" in name and is_module(name))


def is_module(name: str) -> bool:
    """Whether the installed torch has a module of this name."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def is_there(name: str) -> bool:
    """Whether the installed torch has this name; what stands on a value, a device, say, is not looked at."""
    parts = name.split(".")
    holder: object = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        inside = isinstance(holder, types.ModuleType | type) or "ops" in parts[1:number]
        if not inside:
            return True
        whole = ".".join(parts[:number])
        if hasattr(holder, part):
            holder = getattr(holder, part)
        elif is_module(whole):
            holder = sys.modules[whole]
        else:
            return part in getattr(holder, "__annotations__", {})
    return True


def missing() -> list[str]:
    """Names that the tree uses without asking and the installed torch lacks, with the first place of each."""
    places: dict[str, str] = {}
    for path, text in sources():
        for use in uses_in(text):
            places.setdefault(use.name, path)
    return [f"{path}: {name}" for name, path in sorted(places.items()) if not is_there(name)]


def main(words: list[str] | None = None) -> int:
    """Carry out what was asked for; 1 where a name was found that should not be there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("list", "compare", "missing"))
    parser.add_argument("lists", nargs="*", type=Path, help="for compare, the oldest version first")
    how = parser.parse_args(words)
    warnings.simplefilter("ignore")
    if how.step == "compare":
        write_record(how.lists)
        return 0
    if how.step == "list":
        print("\n".join(sorted(listed(private_modules()))))
        return 0
    if how.step == "missing":
        lines = missing()
    else:
        new = recorded(RECORD.read_text("utf-8"))
        lines = [f"{path}: {what}" for path, text in sources() for what in too_new(uses_in(text), new)]
    print("\n".join(lines) or "nothing")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
