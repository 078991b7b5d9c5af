"""Exercise: find what is wrong with six configuration files, before a cluster does.

Nothing here gives an error when it starts. That is what makes it worth learning to read.
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.day2.broken_files import ANSWERS, FILES, NOTHING
from workshop.lessons.exercise import Exercise, WrongAnswer

QUESTION = """\
Read the six files `a` to `f`. Each asks, in its first line, for something that it does not get, but one file
is right. Write `wrong_settings()`: for each letter the key that is wrong or missing, or "nothing"."""

STUB = '''\
def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing, such as "num_machines"; "nothing" for the right one."""
    return {
        "a": ...,
        "b": ...,
        "c": ...,
        "d": ...,
        "e": ...,
        "f": ...,
    }
'''

SOLUTION = '''\
def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing, such as "num_machines"; "nothing" for the right one."""
    return {
        "a": "distributed_type",  # MULTI_CPU starts one process
        "b": "fsdp_auto_wrap_policy",  # missing: nothing is wrapped
        "c": "num_processes",  # it counts all machines: 32
        "d": "zero3_save_16bit_model",  # missing: no rank has the weights to save
        "e": "nothing",
        "f": "fsdp_sharding_strategy",  # a word of FSDP1: FSDP2 wants fsdp_reshard_after_forward: false
    }
'''


def _answers(**changed: str) -> str:
    right = {letter: keys[0] for letter, keys in ANSWERS.items()}
    rows = "".join(f'        "{letter}": "{key}",\n' for letter, key in (right | changed).items())
    return f"def wrong_settings():\n    return {{\n{rows}    }}\n"


HINTS_BY_FILE = {
    "a": "How many processes does `accelerate launch` start for MULTI_CPU? The cell above has run it.",
    "b": "Which class is wrapped is said. That anything is wrapped at all is said by another key.",
    "c": "`num_processes` counts the processes of all machines together. How many does each of the 4 start?",
    "d": "Under ZeRO-3 no rank has all weights. Which key lets them be gathered when they are saved?",
    "e": "Stage 2 does offload its optimizer, the batch is said, and so is clipping.",
    "f": "FSDP2 has no sharding strategies: that key belongs to FSDP1, and nobody reads it.",
}


def _check(names: dict[str, Any]) -> str:
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


WRONG_SETTINGS = Exercise(
    name="wrong_settings",
    day=2,
    question=QUESTION,
    stub=STUB,
    hints=(
        "Ask of each file: how many processes, which engine, what is a unit, can the result be saved?",
        "In two of them a key is missing. In one a key is of the wrong version of FSDP.",
        "`find_mistakes(FILES['b'])` from `workshop.configs` reads a file for you.",
    ),
    solution=SOLUTION,
    defines=("wrong_settings",),
    check=_check,
    shows="A configuration that starts has not been understood yet: assert what you asked for.",
    wrong_answers=(
        WrongAnswer("trusts a", _answers(a=NOTHING), "How many processes does `accelerate launch` start"),
        WrongAnswer(
            "blames the class", _answers(b="fsdp_transformer_layer_cls_to_wrap"), "is wrapped at all"
        ),
        WrongAnswer("finds nothing in c", _answers(c=NOTHING), "counts the processes of all machines"),
        WrongAnswer("blames the init flag", _answers(d="zero3_init_flag"), "no rank has all weights"),
        WrongAnswer("distrusts the right one", _answers(e="offload_optimizer_device"), "and so is the rest"),
        WrongAnswer("another version", _answers(f="fsdp_version"), "that key belongs to FSDP1"),
        WrongAnswer("a list", "def wrong_settings():\n    return ['a']\n", "wanted a dictionary"),
    ),
)
