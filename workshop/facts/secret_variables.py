"""Which variables hold secrets, by their names: tokens, keys, passwords.

A job inherits the environment of the shell that hands it in, and a scheduler keeps it: in its database, in
the spool of each node. A Jupyter token in there opens the notebook to whoever reads it. So secrets are left
out of jobs unless the site's file lets one through by name (``keep`` in [job]), and none of their values, nor
a password within an address, stands on a command line, which every user of the machine can read.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable

PATTERNS = (
    *("*_TOKEN", "*_SECRET", "*_SECRET_*", "*PASSWORD*", "*PASSWD*"),
    *("*_API_KEY", "*_PRIVATE_KEY", "*_ACCESS_KEY", "AWS_*"),
)
_CREDENTIALS = re.compile(r"://([^/@\s:]*):[^/@\s]*@")


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as names tell (upper and lower case alike)."""
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in PATTERNS)


def secrets_in(names: Iterable[str], keep: Collection[str] = ()) -> list[str]:
    """Those of ``names`` that hold secrets and are not in ``keep``, sorted."""
    return sorted(name for name in names if is_secret_name(name) and name not in keep)


def is_secret(name: str, value: str) -> bool:
    """Whether the value must not be seen by others: by its name, or a password in an address."""
    return is_secret_name(name) or bool(_CREDENTIALS.search(value))


def without_password(text: str) -> str:
    """``text`` with ``***`` for a password within an address: ``http://ada:***@proxy:3128``."""
    return _CREDENTIALS.sub(r"://\1:***@", text)
