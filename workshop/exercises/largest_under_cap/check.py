"""Exercise: the widest model that still trains under a memory cap.

The cap is the GPU; the model grows until DDP no longer fits. What decides is not the weights but
everything that training keeps beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

MOST_CALLS = 10_000
BYTES_PER_PARAMETER = 16  # ddp_bytes in fp32: the exercise before this one


def transformer(width: int) -> int:
    """12 width^2 in each of 8 blocks, and an embedding of 4,096 words."""
    return 8 * 12 * width**2 + 4096 * width


def mlp(width: int) -> int:
    """Two square matrices with their biases."""
    return 2 * (width**2 + width)


# The third is an exact fit; in the last nothing fits.
CASES: tuple[tuple[int, Callable[[int], int]], ...] = (
    (256 * 2**20, transformer),
    (80 * 10**9, transformer),
    (BYTES_PER_PARAMETER * mlp(640), mlp),
    (BYTES_PER_PARAMETER * mlp(640) - 1, mlp),
    (1000, mlp),
)


def check(names: dict[str, Any]) -> str:
    """Each cap against a search of our own, by the plain 16 bytes a parameter."""
    for cap_bytes, parameters in CASES:
        made = Call((cap_bytes, _patient(parameters)))
        answer = number(
            call(names["largest_under_cap"], "largest_under_cap", made), made.written("largest_under_cap")
        )
        wanted = _largest(cap_bytes, parameters, BYTES_PER_PARAMETER)
        if answer != wanted:
            raise Wrong(
                f"`{made.written('largest_under_cap')}` gave {shown(answer)}; wanted {shown(wanted)}. "
                f"{_why(int(answer), wanted, cap_bytes, parameters)}"
            )
    return "Under 256 MiB the model of the check grows to width 384; under 80 GB, to 7,168."


def _largest(cap_bytes: int, parameters: Callable[[int], int], bytes_per_parameter: int) -> int:
    width = 0
    while bytes_per_parameter * parameters(width + 64) <= cap_bytes:
        width += 64
    return width


def _patient(parameters: Callable[[int], int]) -> Callable[[int], int]:
    """The function, but not for ever: a search that never ends is an answer too."""
    calls = 0

    def counted(width: int) -> int:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise Wrong(
                f"`largest_under_cap` tried {MOST_CALLS:,} widths and had not finished: does its loop end?"
            )
        return parameters(width)

    counted.__name__ = parameters.__name__
    return counted


def _why(answer: int, wanted: int, cap_bytes: int, parameters: Callable[[int], int]) -> str:
    """What the width that was found would need, and the two usual reasons."""
    if answer == _largest(cap_bytes, parameters, 4):
        return "Only the weights fit at that width. Gradients and moments need room too: use `ddp_bytes`."
    if answer < wanted:
        return f"A width of {shown(wanted)} fits too."
    needs = BYTES_PER_PARAMETER * parameters(answer)
    if needs <= cap_bytes:
        return "That width is not a multiple of 64."
    return (
        f"At {shown(answer)} DDP needs {shown(needs)} bytes, more than {shown(cap_bytes)}: one step too far?"
    )
