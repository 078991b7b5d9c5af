"""Programs in files: the script or module that is meant, and the file that ``--save`` leaves of a cell.

Where a saved cell takes values by `--pass`, its first statement sets them: as literals where Python can write
them, else read from a pickle beside the file. `python -m torch.distributed.run` on the saved file prints what
the cell printed.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from workshop.launch.request import literal, pickled


def file_of(path: Path) -> Path:
    """The script itself; ValueError names what lies beside it where it is not there."""
    if not path.is_file():
        near = sorted(beside.name for beside in path.parent.glob("*.py"))[:5]
        beside = f"; in that folder: {', '.join(near)}" if near else ""
        raise ValueError(f"there is no script {path}{beside}")
    return path


def module_file(name: str) -> Path:
    """The file that ``python -m NAME`` runs, found without an import; ValueError where there is none."""
    spec = _module_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _module_spec(f"{name}.__main__")
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ValueError(
            f"there is no module {name} that could be run: neither {name.replace('.', '/')}.py nor "
            f"{name.replace('.', '/')}/__main__.py in this folder or where Python looks"
        )
    return Path(spec.origin).resolve()


def top_folder(name: str) -> Path:
    """The folder of the package that a module belongs to; for one of its own, the folder where it lies."""
    spec = _module_spec(name.partition(".")[0])
    assert spec is not None
    folders = spec.submodule_search_locations or [str(Path(str(spec.origin)).parent)]
    return Path(folders[0]).resolve()


def _module_spec(name: str) -> ModuleSpec | None:
    """What the import system knows of a module, the current folder first; no package is imported."""
    top, *parts = name.split(".")
    spec = PathFinder.find_spec(top, [str(Path.cwd())]) or importlib.util.find_spec(top)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec


_OWN_GPU = (
    "import os, torch; torch.cuda.is_available() and "
    'torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())'
)


def save(path: Path, magic_line: str, body: str, variables: Mapping[str, Any]) -> Path:
    """Write the cell as a program of its own; returns the path. Values without a literal go to a pickle."""
    if path.suffix != ".py":
        named = path.with_suffix(".py") if path.name else "cell.py"
        raise ValueError(f"--save {path}: a program needs the ending .py, for example {named}")
    setters = []
    pickles = {}
    for name, value in variables.items():
        source = literal(value)
        if source is None:
            pickles[name] = value
        else:
            setters.append(f"{name} = {source}")
    if pickles:
        beside = path.with_suffix(".pass.pkl")
        beside.write_bytes(pickled(pickles))
        setters.append(
            "from pathlib import Path; from workshop.launch import unpickled; "
            f"globals().update(unpickled(Path(__file__).with_name({beside.name!r})))"
        )
    if "torch" in body:  # `%%torchrun` does it for each rank; plain torchrun leaves it to the program
        setters.append(_OWN_GPU)
    path.write_text(_begun("; ".join(setters), magic_line, body), encoding="utf-8")
    return path


def _begun(first: str, magic_line: str, body: str) -> str:
    """The program that does ``first`` before the cell's own statements; no line of the cell moves."""
    lines = body.splitlines(keepends=True)
    futures = [
        one for one in ast.parse(body).body if isinstance(one, ast.ImportFrom) and one.module == "__future__"
    ]
    if first and futures:  # Python wants these before any other statement
        at, column = (futures[-1].end_lineno or 1) - 1, futures[-1].end_col_offset
        line = lines[at].encode()  # columns are counted in bytes
        lines[at] = (line[:column] + f"; {first}".encode() + line[column:]).decode()
        first = ""
    return f"{first}{'  ' if first else ''}# {magic_line.strip()}\n{''.join(lines)}"
