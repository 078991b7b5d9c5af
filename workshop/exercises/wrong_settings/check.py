"""Exercise: find what is wrong with six configuration files, before a cluster does.

Nothing here gives an error when it starts. That is what makes it worth learning to read.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown
from workshop.exercises.wrong_settings.files import ANSWERS, FILES, NOTHING

HINTS_BY_FILE = {
    "a": "Whose launcher reads `use_cpu`? What do FSDP's two processes know of each other without GPUs?",
    "b": "Which class is wrapped is said. That anything is wrapped at all is said by another key.",
    "c": "`num_processes` counts the processes of all machines together. How many does each of the 4 start?",
    "d": "Under ZeRO-3 no rank has all weights. Which key lets them be gathered when they are saved?",
    "e": "Stage 2 does offload its optimizer, the batch is said, and so is clipping.",
    "f": "FSDP2 has no sharding strategies: that key belongs to FSDP1, and nobody reads it.",
}


def check(names: dict[str, Any]) -> str:
    """One answer after the other, in the order of the letters."""
    found = call(names["wrong_settings"], "wrong_settings", Call(()))
    if not isinstance(found, dict) or set(found) != set(FILES):
        raise Wrong(f"`wrong_settings()` gave {shown(found)}; wanted a dictionary with the keys a to f.")
    for letter, keys in ANSWERS.items():
        answer = str(found[letter]).strip().split(".")[-1].split(":")[0]
        if answer in keys:
            continue
        if answer == NOTHING:
            raise Wrong(f"File {letter} does not do what its first line asks for. {HINTS_BY_FILE[letter]}")
        if keys == (NOTHING,):
            raise Wrong(f"In file {letter}, {answer} is right, and so is the rest. {HINTS_BY_FILE[letter]}")
        there = "is not what is wrong" if answer in FILES[letter] else "is not the key that is missing"
        raise Wrong(f"In file {letter}, {shown(answer)} {there}. {HINTS_BY_FILE[letter]}")
    return "Five files that start without a word and do not do what they say; one that does."
