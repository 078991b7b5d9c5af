"""A cell as a plain program: the file that the ranks run, and the file that `--save` leaves.

Line 1 of the file is the magic line itself as a comment, so that line numbers are the cell's own.
Where the cell takes values by `--pass`, line 1 sets them too: as literals where Python can write
them, else read from a pickle beside the file. `python -m torch.distributed.run` on the saved file
prints what the cell printed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workshop.launch.variables import literal, pickled


class CellSyntaxError(ValueError):
    """A cell that is not Python, said before a single process starts."""


def check_syntax(source: str, name: str = "cell", *, top_level_await: bool = False) -> None:
    """Raise `CellSyntaxError` with line and text; a word on magics where one is the cause."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if top_level_await else 0
    try:
        compile(source, name, "exec", flags=flags, dont_inherit=True)
    except SyntaxError as error:
        text = (error.text or "").strip()
        why = error.msg
        if text.startswith(("%", "!")):
            why = f"{text.split()[0]} is IPython's; a %%torchrun cell is plain Python, as in a file"
        raise CellSyntaxError(f"{name} line {error.lineno}: {why}\n    {text}") from None


def cell_source(magic_line: str, body: str) -> str:
    """The cell as the ranks compile it: the magic line is line 1, as the notebook counts."""
    return f"# {magic_line.strip()}\n{body}"


def save(path: Path, magic_line: str, body: str, passing: Mapping[str, Any]) -> Path:
    """Write the cell as a program of its own; returns the path. Values without a literal go to a pickle."""
    if path.suffix != ".py":
        raise ValueError(
            f"--save {path}: a program needs the ending .py, for example {path.with_suffix('.py')}"
        )
    setters = []
    pickles = {}
    for name, value in passing.items():
        source = literal(value)
        if source is None:
            pickles[name] = value
        else:
            setters.append(f"{name} = {source}")
    if pickles:
        beside = path.with_suffix(".pass.pkl")
        beside.write_bytes(pickled(pickles))
        setters.append(
            "from pathlib import Path; from workshop.launch.variables import unpickled; "
            f"globals().update(unpickled(Path(__file__).with_name({beside.name!r})))"
        )
    first = "; ".join(setters)
    path.write_text(f"{first}{'  ' if first else ''}# {magic_line.strip()}\n{body}", encoding="utf-8")
    return path
