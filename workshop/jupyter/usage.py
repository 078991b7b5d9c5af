"""A magic that cannot be understood must be a red cell.

IPython prints a UsageError and goes on, so nbval and nbmake call a mistyped magic a success. Our own
parsers raise ValueError with the nearest flag; for every other magic of the notebook a UsageError,
an unknown magic included, is shown as the error that it is.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from workshop.jupyter.flags import why_not_here
from workshop.launch import EngineError


def explain_errors(name: str) -> Callable[[Any], Any]:
    """Decorator, outermost on a magic: its parser raises ValueError with the usage and the nearest flag,
    and what a reader has to mend (ValueError, EngineError) is shown as its sentence, without our stack.
    """

    def decorate(magic: Any) -> Any:
        magic.parser.error = _speaking(magic.parser, name)

        @functools.wraps(magic)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return magic(*args, **kwargs)
            except (ValueError, EngineError) as error:
                show_as_sentence(error)
                raise

        return run

    return decorate


def show_as_sentence(error: BaseException) -> None:
    """Have IPython show this exception as one line instead of a stack."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]


def _speaking(parser: MagicArgumentParser, name: str) -> Callable[[str], None]:
    def error(message: str) -> None:
        known = [flag for action in parser._actions for flag in action.option_strings]
        unknown = next((word for word in message.split() if word.startswith("-") and word not in known), "")
        near = difflib.get_close_matches(unknown, known, 1)
        hint = f" Did you mean {near[0]}?" if near and "unrecognized" in message else ""
        if reason := why_not_here(unknown):
            raise ValueError(f"{name}: {reason}. `{name}?` explains the flags that there are.") from None
        flags = ", ".join(known)
        raise ValueError(f"{name}: {message}.{hint} Known flags: {flags}. `{name}?` explains them.") from None

    return error


def make_usage_errors_red(ip: Any) -> None:
    """From now on a UsageError in this notebook is an error message like any other exception."""

    def show(shell: Any, kind: type, value: BaseException, _trace: Any, **_options: Any) -> None:
        shell._showtraceback(kind, value, [f"UsageError: {value}"])

    ip.set_custom_exc((UsageError,), show)
