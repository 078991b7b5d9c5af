"""`--pass run,lr`: values of the notebook that become variables of the cell on every rank.

Values are pickled one by one, so that the one which cannot be pickled is named. cloudpickle is
used because a function defined in a notebook has no module to be imported from.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workshop.site.owners import open_own

_SHELL_NAMES = frozenset(
    ("In", "Out", "exit", "quit", "open", "get_ipython")
)  # IPython's own, in every notebook


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
    import ast

    source = repr(value)
    try:
        same = ast.literal_eval(source) == value
    except (ValueError, SyntaxError, TypeError):
        return None
    return source if same is True else None
