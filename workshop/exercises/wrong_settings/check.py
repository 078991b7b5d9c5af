"""Exercise: find what is wrong with six configuration files, before a cluster does.

Nothing here gives an error when it starts. That is what makes it worth learning to read.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown
from workshop.exercises.wrong_settings.files import ANSWERS, FILES, NOTHING

HINTS_BY_FILE = {
    "a": "Which launchers read `use_cpu`? Do the two processes of FSDP find each other without GPUs?",
    "b": "The file names the class to wrap. A different key decides whether anything is wrapped.",
    "c": "`num_processes` counts the processes of all machines together. How many does each of the 4 start?",
    "d": "Under ZeRO-3 no rank has all weights. Which key lets them be gathered when they are saved?",
    "e": "Stage 2 can offload its optimizer, and the file sets accumulation and clipping.",
    "f": "FSDP2 has no sharding strategies: that key belongs to FSDP1, and FSDP2 does not read it.",
}


def check(names: dict[str, Any]) -> str:
    """One answer after the other, in the order of the letters."""
    result = call(names["wrong_settings"], "wrong_settings", Call(()))
    if not isinstance(result, dict) or set(result) != set(FILES):
        raise Wrong(f"`wrong_settings()` gave {shown(result)}; wanted a dictionary with the keys a to f.")
    for letter, keys in ANSWERS.items():
        answer = str(result[letter]).strip().split(".")[-1].split(":")[0]
        if answer in keys:
            continue
        if answer == NOTHING:
            raise Wrong(f"File {letter} does not do what its first line asks for. {HINTS_BY_FILE[letter]}")
        if keys == (NOTHING,):
            raise Wrong(f"In file {letter}, {answer} is right, and so is the rest. {HINTS_BY_FILE[letter]}")
        there = "is not what is wrong" if answer in FILES[letter] else "is not the key that is missing"
        raise Wrong(f"In file {letter}, {shown(answer)} {there}. {HINTS_BY_FILE[letter]}")
    return "Five files start without a warning and do not do what they say, and one does."
