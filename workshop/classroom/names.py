"""Names that people give themselves, made safe: to be shown, and to be part of a file's name.

A name is shown as it was typed, without what moves the cursor or turns the writing round. In a file's name
only plain letters, digits and ``-`` are left, and an ID of 64 random bits follows: two learners of one name,
or of names that differ only in case, have different folders, and nobody finds another's by guessing.
"""

from __future__ import annotations

import re
import secrets
import unicodedata

LONGEST_SHOWN = 60
LONGEST_IN_FILES = 40
FOLDER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}-[0-9a-f]{16}")
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))  # controls, direction marks, line separators


def shown_name(text: str) -> str:
    """The name on one line, without control characters, at most 60 letters.

    Raises:
        ValueError: nothing is left of it.
    """
    name = clean_text(" ".join(unicodedata.normalize("NFC", text).split()), LONGEST_SHOWN).strip()
    if not name:
        raise ValueError(f"the name {text[:80]!r} has no letter in it: %room join --name ada")
    return name


def clean_text(text: str, most: int, keep: str = "") -> str:
    """``text`` without characters that are not seen (except those in ``keep``), at most ``most`` of them."""
    if text.isprintable():  # none of them is; what nearly every text is, and a hundred times as fast
        return text[:most]
    return "".join(one for one in text if one in keep or unicodedata.category(one) not in _UNSEEN)[:most]


def folder_name(name: str) -> str:
    """A new folder's name for a learner: what ASCII can say of the name, and 64 random bits."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    kept = re.sub(r"[^a-z0-9]+", "-", plain)[:LONGEST_IN_FILES].strip("-")
    return f"{kept or 'learner'}-{secrets.token_hex(8)}"


def check_folder_name(name: str) -> str:
    """``name``, where it is one that `folder_name` makes.

    Raises:
        ValueError: it is another; a name out of a file must not lead elsewhere.
    """
    if not FOLDER_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is no learner's folder: those are called as ada-0123456789abcdef")
    return name
