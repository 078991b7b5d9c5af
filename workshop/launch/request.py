"""What is asked of a launch: a program, how many ranks, values of the notebook, and what it may take.

A cell becomes a program whose line 1 is the magic line itself as a comment, so that line numbers are the
cell's own. With ``--pass run,lr`` values of the notebook become variables of the program on every rank. They
are pickled one by one, so that the one which cannot be pickled is named. cloudpickle is used because a
function defined in a notebook has no module to be imported from.
"""

from __future__ import annotations

import ast
import functools
import os
import pickle
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from workshop.facts.units import parse_bytes
from workshop.site.owners import open_own

DEFAULT_TIMEOUT = "WORKSHOP_TIMEOUT"
MOST_RANKS = 1024
# IPython's own names, in every notebook
_SHELL_NAMES = frozenset(("In", "Out", "exit", "quit", "open", "get_ipython"))
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Limits:
    """Limits of one launch.

    timeout: seconds until the ranks are asked where they are and ended; None: the environment's
        ``WORKSHOP_TIMEOUT``, else 300.
    device_memory: bytes that a rank may hold on its device, as a number or as ``"256MiB"``.
    max_restarts: how many times the whole group may start again after a failure, as torchrun's.
    share_gpu: where there are fewer GPUs than ranks, let ranks share them over gloo (`launch.device`); None:
        as the variable ``WORKSHOP_SHARE_GPU`` says, else they go to the CPU.
    """

    timeout: float | None = None
    device_memory: int | str | None = None
    max_restarts: int = 0
    share_gpu: bool | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < 1e7:
            raise ValueError(f"timeout {self.timeout} s: a launch needs a positive number of seconds")
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts {self.max_restarts}: zero or more")
        if self.device_memory is not None and parse_bytes(self.device_memory) <= 0:
            raise ValueError(f"device_memory {self.device_memory}: more than nothing, for example 256MiB")

    def seconds(self) -> float:
        """The time limit in force."""
        if self.timeout is not None:
            return self.timeout
        text = os.environ.get(DEFAULT_TIMEOUT, "300")
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{DEFAULT_TIMEOUT}={text!r}: a number of seconds, for example 300") from None

    def note(self) -> str:
        """For a launch whose time was up: how to allow it more, where nobody has set its limit."""
        if self.timeout is not None:
            return ""
        return (
            f"{self.seconds():g} s is the limit where none is named: `--timeout 3600` gives an hour, and the "
            f"variable {DEFAULT_TIMEOUT} sets the limit of all."
        )

    def memory_bytes(self) -> int | None:
        """The cap in bytes, or None."""
        return None if self.device_memory is None else parse_bytes(self.device_memory)


def check_rank_count(n: int) -> int:
    """``n`` itself; ValueError when no group of that size can be started."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_RANKS:
        raise ValueError(f"{n} ranks: a group has 1 to {MOST_RANKS} ranks, for example -n 4")
    return n


# ---------------------------------------------------------------------------- the program


@dataclass(frozen=True)
class Script:
    """A program in a file, with its arguments: ``Script("train.py", ("--lr", "1e-3"))``.

    args: words, or one text that is split as a shell splits it.
    """

    path: Path
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "args", _words(self.args))


@dataclass(frozen=True)
class Module:
    """A program that is a module, with its arguments: what ``python -m NAME`` would run."""

    name: str
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", _words(self.args))


def _words(args: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(shlex.split(args)) if isinstance(args, str) else tuple(map(str, args))


@dataclass(frozen=True)
class Cell:
    """A program from a notebook cell; the magic line is line 1, so that line numbers are the cell's."""

    body: str
    magic_line: str = "%%torchrun"


class CellSyntaxError(ValueError):
    """A cell that is not Python, said before a single process starts."""


def check_syntax(
    source: str, name: str = "cell", *, top_level_await: bool = False, magic: str = "%%torchrun"
) -> None:
    """Raise `CellSyntaxError` with line and text; a word on magics where one is the cause.

    magic: the cell's own, as a reader wrote it.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if top_level_await else 0
    try:
        compile(source, name, "exec", flags=flags, dont_inherit=True)
    except SyntaxError as error:
        lines, at = source.splitlines(), error.lineno or 0
        text = (error.text or (lines[at - 1] if 0 < at <= len(lines) else "")).strip()
        why = error.msg
        if "outside function" in why and "await" in why and magic != "%%ranks":
            why += " (in a %%ranks cell await works)"
        if text.startswith(("%", "!")):
            why = f"{text.split()[0]} is IPython's; a {magic} cell is plain Python, as in a file"
        raise CellSyntaxError(f"{name} line {error.lineno}: {why}\n    {text}") from None


def cell_source(magic_line: str, body: str) -> str:
    """The cell as the ranks compile it: the magic line is line 1, as the notebook counts."""
    return f"# {magic_line.strip()}\n{body}"


# ---------------------------------------------------------------------------- values of the notebook


def select(names: str, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The values named in ``"a,b"``; ValueError names one that is not there and the nearest that is."""
    from difflib import get_close_matches

    chosen = {}
    for name in filter(None, (n.strip() for n in names.split(","))):
        if name not in namespace:
            near = get_close_matches(
                name, [n for n in namespace if not n.startswith("_") and n not in _SHELL_NAMES], 1
            )
            hint = f" Did you mean {near[0]!r}?" if near else " Define it in a cell before this one."
            raise ValueError(f"--pass {name}: the notebook has no variable of that name.{hint}")
        chosen[name] = namespace[name]
    return chosen


def takes_passing(run: Callable[P, R]) -> Callable[P, R]:
    """``variables`` was called ``passing``: the function takes both words, and warns of the old one."""

    @functools.wraps(run)
    def with_either(*args: P.args, **words: P.kwargs) -> R:
        if "passing" in words:
            if "variables" in words:
                raise TypeError(f"{run.__name__}() got variables and passing, the old name of the same")
            warnings.warn("passing= is called variables= now", DeprecationWarning, stacklevel=2)
            words["variables"] = words.pop("passing")
        return run(*args, **words)

    return with_either


def pickled(values: Mapping[str, Any]) -> bytes:
    """All values in one pickle; ValueError names the value that cannot be pickled, and why."""
    import cloudpickle

    each = {}
    for name, value in values.items():
        try:
            each[name] = cloudpickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"--pass {name}: a {type(value).__name__} cannot be sent to the ranks ({error}). "
                "Pass the numbers it is made from and build it in the cell."
            ) from None
    return pickle.dumps(each)


def unpickled(path: Path) -> dict[str, Any]:
    """In a rank: the values that `pickled` wrote to ``path``.

    Raises `site.owners.NotOurs` for a file that others could have written: reading a pickle runs code.
    """
    with os.fdopen(open_own(path), "rb") as file:
        whole = pickle.loads(file.read())
    return {name: pickle.loads(data) for name, data in whole.items()}


def literal(value: Any) -> str | None:
    """Python source that gives ``value`` back, or None where there is none (an object, a nan)."""
    source = repr(value)
    try:
        same = ast.literal_eval(source) == value
    except (ValueError, SyntaxError, TypeError):
        return None
    return source if same is True else None
