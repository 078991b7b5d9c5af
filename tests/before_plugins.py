"""What pytest is told to import before its plugins: ``-p tests.before_plugins``, in the Makefile.

nbval and nbmake import nbformat, which imports jsonschema, which imports the parser of international addresses, which
makes its tables then: more than a second of a core for every process of pytest. It makes them here when an address is
first asked about.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

PARSER = "rfc3987_syntax"


def is_valid_syntax(term: str, value: str) -> bool:
    """As the parser's own function, which is imported now."""
    if isinstance(sys.modules.get(PARSER), _Later):
        del sys.modules[PARSER]
    return import_module(PARSER).is_valid_syntax(term, value)


class _Later(ModuleType):
    """Stands for the parser until it is wanted."""

    is_valid_syntax = staticmethod(is_valid_syntax)


if PARSER not in sys.modules:
    sys.modules[PARSER] = _Later(PARSER)
