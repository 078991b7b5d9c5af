"""Exercise: which operations on a tensor copy its numbers, and which only look at them in another way.

What is true is measured in `tests/exercises/test_which_copy.py`: a tensor that shares its storage was not
copied. PyTorch documentation, "Tensor Views".
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

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
    "x.reshape(2, 6)": "In storage order, 2 x 6 is the same row of numbers: different strides are enough.",
    "x.T.reshape(12)": "No single stride reads columns one after another: 0, 4, 8, then back to 1.",
    "x.contiguous()": "x is in order already, so it is returned as it is.",
    "x.T.contiguous()": "x.T is not in order, and putting it in order means writing it to a new place.",
    "x[[0, 2]]": "A list could name any rows, and strides can only express equal distances.",
    "x[:1].expand(5, 4)": "A stride of 0 reads the same row five times.",
    "x.to(torch.float32)": "It is float32 already, so `to` returns it as it is.",
    "rearrange(x, 'r c -> (c r)')": "No single stride reads column by column, whatever einops calls it.",
}


def check(names: dict[str, Any]) -> str:
    """Each expression in turn; the first that is wrong is explained."""
    answer = call(names["which_copy"], "which_copy", Call(()))
    if not isinstance(answer, dict):
        raise Wrong(f"`which_copy()` gave {shown(answer)}; wanted a dict from expression to True or False.")
    for expression, copies in TRUTH.items():
        if expression not in answer:
            raise Wrong(f"`{expression}` is missing from the answer.")
        if bool(answer[expression]) is not copies:
            raise Wrong(f"`{expression}` {'copies' if copies else 'does not copy'}. {WHY[expression]}")
    return f"Of {len(TRUTH)} expressions {sum(TRUTH.values())} copy. Strides explain each of them."
