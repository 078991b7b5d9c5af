"""A function that lives on ranks, held in a notebook that never imports torch.

A cell such as ``ring_all_reduce`` begins with ``import torch``. Running it in the notebook would load
torch there: two seconds, two hundred megabytes, and on a GPU node a CUDA context beside those of the
ranks. So the notebook keeps the source only. `RankFunction` stands for the function: it shows its source,
it can be handed to ranks (``%%torchrun -n 4 --pass ring_all_reduce``), and there, as it is unpickled, it
becomes the function itself.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from workshop.exercises.engine import cell


class RankFunction:
    """The function ``name`` of a cell with the given source, to be handed to ranks."""

    def __init__(self, exercise: str, name: str, source: str):
        self.exercise = exercise
        self.source = source
        self.__name__ = self.__qualname__ = name
        node = next(
            node
            for node in cell.parse(exercise, source).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        )
        self.__doc__ = ast.get_docstring(node)
        self._arguments = ast.unparse(node.args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here, if torch is here already; else say where it can run."""
        if not _torch_is_here():
            raise RuntimeError(
                f"{self.__name__} lives on ranks: hand it over with --pass {self.__name__}, as in "
                f"`%%torchrun -n 4 --pass {self.__name__}`. (The notebook itself does not load torch.)"
            )
        return _functions(self.exercise, self.source)[self.__name__](*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str, str]]:
        return revive, (self.exercise, self.__name__, self.source)

    def __repr__(self) -> str:
        name = self.__name__
        return f"<{name}({self._arguments}): lives on ranks; hand it over with --pass {name}>"

    def _repr_html_(self) -> str:
        from workshop.exercises.engine.prose import code_block, paragraph

        name = self.__name__
        return paragraph(f"`{name}` lives on ranks: hand it over with `--pass {name}`.") + code_block(
            self.source
        )


def revive(exercise: str, name: str, source: str) -> Any:
    """Unpickling: the function itself where ranks are, the stand-in again in a notebook without torch."""
    if "RANK" in os.environ or _torch_is_here():
        return _functions(exercise, source)[name]
    return RankFunction(exercise, name, source)


def _torch_is_here() -> bool:
    return "torch" in sys.modules


@functools.cache
def _functions(exercise: str, source: str) -> dict[str, Any]:
    """Run the cell's definitions once; functions of one cell share their names, as they do in the cell."""
    names: dict[str, Any] = {"__name__": f"exercise_{exercise}"}
    definitions = cell.definitions_only(cell.parse(exercise, source))
    exec(compile(definitions, cell.remember(exercise, source), "exec", dont_inherit=True), names)
    return names
