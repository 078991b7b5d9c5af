"""Exercise: which operations on a tensor copy its numbers, and which only look at them in another way.

What is true is measured in `tests/lessons/test_which_copy.py`: a tensor that shares its storage was not
copied. PyTorch documentation, "Tensor Views".
"""

from __future__ import annotations

from typing import Any

from workshop.lessons.check import Call, Wrong, call, shown
from workshop.lessons.exercise import Exercise, WrongAnswer

TRUTH = {
    "x.T": False,
    "x[:, ::2]": False,
    "x.reshape(2, 6)": False,
    "x.T.reshape(12)": True,
    "x.contiguous()": False,
    "x.T.contiguous()": True,
    "x[[0, 2]]": True,
    "x[:1].expand(5, 4)": False,
    "x.to(torch.float32)": False,
    "rearrange(x, 'r c -> (c r)')": True,
}
"""Does it copy? x is `torch.arange(12.).view(3, 4)`."""

WHY = {
    "x.T": "The strides change places, and nothing moves.",
    "x[:, ::2]": "Every second column is reached by twice the stride.",
    "x.reshape(2, 6)": "In storage order 2 x 6 is the same row of numbers: other strides do it.",
    "x.T.reshape(12)": "No single stride reads columns one after another: 0, 4, 8, then back to 1.",
    "x.contiguous()": "x is in order already, so it is handed back as it is.",
    "x.T.contiguous()": "x.T is not in order, and to put it in order is to write it anew.",
    "x[[0, 2]]": "A list of rows could name any rows, and strides know only equal distances.",
    "x[:1].expand(5, 4)": "A stride of 0 reads the same row five times.",
    "x.to(torch.float32)": "It is float32 already, so `to` hands it back.",
    "rearrange(x, 'r c -> (c r)')": "einops is reshape behind a clearer name: column by column is no stride.",
}

QUESTION = """\
x is `torch.arange(12.).view(3, 4)`: twelve float32 numbers in order. Write `which_copy()`: for each
expression True if it copies numbers to a new place, False if the result reads x's own storage. Say it before
you try it."""

_LINES = "\n".join(f'        "{expression}": ...,' for expression in TRUTH)

STUB = f'''\
def which_copy() -> dict[str, bool]:
    """For x = torch.arange(12.).view(3, 4): does the expression copy?"""
    return {{
{_LINES}
    }}
'''


def _answer(truth: dict[str, bool]) -> str:
    source = STUB
    for expression, copies in truth.items():
        source = source.replace(f'"{expression}": ...', f'"{expression}": {copies}')
    return source


SOLUTION = _answer(TRUTH)


def _check(names: dict[str, Any]) -> str:
    """Each expression in turn; the first that is wrong is explained."""
    said = call(names["which_copy"], "which_copy", Call(()))
    if not isinstance(said, dict):
        raise Wrong(f"`which_copy()` gave {shown(said)}; wanted a dict from expression to True or False.")
    for expression, copies in TRUTH.items():
        if expression not in said:
            raise Wrong(f"`{expression}` is missing from the answer.")
        if bool(said[expression]) is not copies:
            raise Wrong(f"`{expression}` {'copies' if copies else 'does not copy'}. {WHY[expression]}")
    return f"Of {len(TRUTH)} expressions {sum(TRUTH.values())} copy. Strides explain each of them."


WHICH_COPY = Exercise(
    name="which_copy",
    day=1,
    question=QUESTION,
    stub=STUB,
    hints=(
        "A view is a storage, an offset and one stride for each dim. Can the result be read that way?",
        "Where the strides already do, `contiguous`, `reshape` and `to` hand back what they were given.",
        "Four of the ten copy: two read column by column, one puts x.T in order, one picks rows by a list.",
    ),
    solution=SOLUTION,
    defines=("which_copy",),
    check=_check,
    shows="An operation copies where no offset and strides can say what it wants.",
    wrong_answers=(
        WrongAnswer("transposing moves", _answer({**TRUTH, "x.T": True}), "strides change places"),
        WrongAnswer("reshape never copies", _answer({**TRUTH, "x.T.reshape(12)": False}), "No single stride"),
        WrongAnswer(
            "contiguous always copies", _answer({**TRUTH, "x.contiguous()": True}), "in order already"
        ),
        WrongAnswer("lists are slices", _answer({**TRUTH, "x[[0, 2]]": False}), "equal distances"),
        WrongAnswer("expand writes", _answer({**TRUTH, "x[:1].expand(5, 4)": True}), "stride of 0"),
        WrongAnswer("to always copies", _answer({**TRUTH, "x.to(torch.float32)": True}), "float32 already"),
        WrongAnswer(
            "einops is magic",
            _answer({**TRUTH, "rearrange(x, 'r c -> (c r)')": False}),
            "behind a clearer name",
        ),
    ),
)
