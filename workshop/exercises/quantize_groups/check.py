"""Exercise: codes and scales of a matrix, group by group.

Absmax with a scale for each group of neighbours in a row, and codes held at the ends of their range (Dettmers
et al. 2022, arXiv 2208.07339, section 2.1; groups as in Frantar et al. 2022, arXiv 2210.17323, section 4).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Wrong, shown


def _right(weight: Any, group_size: int, bits: int, clip: float = 1.0) -> tuple[Any, Any]:
    """What is wanted."""
    import numpy as np

    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // group_size, group_size)
    largest = 2 ** (bits - 1) - 1
    scales = clip * np.abs(groups).max(-1) / largest
    codes = np.clip(np.round(groups / scales[..., None]), -largest - 1, largest)
    return codes.reshape(rows, columns), scales


def check(names: dict[str, Any]) -> str:
    """Two groups one can do in one's head; then random matrices, other widths, and a clip."""
    import numpy as np

    numbers = np.random.default_rng(0)
    # No weight lies halfway between two codes: either would be the nearest.
    _one(names, np.array([[0.2, -0.7, 0.35, 0.1], [70.0, 31.0, -11.0, 20.0]]), 2, 4, 1.0)
    for group_size, bits, clip in ((8, 4, 1.0), (4, 8, 1.0), (16, 3, 1.0), (8, 4, 0.6), (8, 2, 0.5)):
        _one(names, numbers.normal(size=(3, 16)) * numbers.uniform(0.1, 9, (3, 1)), group_size, bits, clip)
    return "Codes and scales are right for 2, 3, 4 and 8 bits, and numbers beyond the ends are clipped."


def _one(names: dict[str, Any], weight: Any, group_size: int, bits: int, clip: float) -> None:
    import numpy as np

    answer = names["quantize_groups"](weight.copy(), group_size, bits, clip)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"`quantize_groups` gave {shown(answer)}; wanted two arrays, codes and scales.")
    codes, scales = (np.asarray(each) for each in answer)
    wanted_codes, wanted_scales = _right(weight, group_size, bits, clip)
    called = f"With {bits} bits and groups of {group_size}" + (f", clip {clip}," if clip != 1 else "")
    for what, array, wanted in (("codes", codes, wanted_codes), ("scales", scales, wanted_scales)):
        if array.shape != wanted.shape:
            raise Wrong(f"{called} the {what} have shape {array.shape}; wanted {wanted.shape}.")
    if not np.allclose(scales, wanted_scales):
        advice = f"{called} the scales of the first row are {shown(scales[0].tolist())}; wanted "
        raise Wrong(
            f"{advice}{shown(wanted_scales[0].tolist())}. {_why(scales, weight, group_size, bits, clip)}"
        )
    if not np.array_equal(codes, wanted_codes):
        row = int((codes != wanted_codes).any(1).argmax())
        advice = f"{called} the codes of row {row} are {shown(codes[row].tolist())}; wanted "
        raise Wrong(f"{advice}{shown(wanted_codes[row].tolist())}. {_why_codes(codes, wanted_codes, bits)}")


def _why(scales: Any, weight: Any, group_size: int, bits: int, clip: float) -> str:
    """Which scale it is instead."""
    import numpy as np

    groups = weight.reshape(len(weight), -1, group_size)
    largest, magnitudes = 2 ** (bits - 1) - 1, clip * np.abs(groups)
    if np.allclose(scales, magnitudes.max() / largest):
        return "That is one scale for the whole matrix: its largest number decides for all groups."
    if np.allclose(scales, magnitudes.max((1, 2))[:, None] / largest):
        return "That is one scale for a row: each group has its own."
    if np.allclose(scales, magnitudes.max(-1) / (largest + 1)):
        return f"The largest number would get code {largest + 1}, one too many: the last is {largest}."
    if np.allclose(scales, magnitudes.max(-1) / (2**bits - 1)):
        return (
            f"2^bits - 1 = {2**bits - 1} steps are the whole range; from zero to its end there are {largest}."
        )
    if np.allclose(scales, clip * groups.max(-1) / largest):
        return "A large negative number is large too: take the magnitude."
    return "A scale is clip times the group's largest magnitude, divided by the largest code."


def _why_codes(codes: Any, wanted: Any, bits: int) -> str:
    """What has been done instead of rounding to a code in the range."""
    import numpy as np

    largest = 2 ** (bits - 1) - 1
    if not np.array_equal(codes, np.round(codes)):
        return "Codes are whole numbers: divide by the scale, round, and leave it at that."
    if np.array_equal(codes, np.maximum(wanted, -largest)):
        return f"Below zero there is one code more, {-largest - 1}, for what lies beyond the end."
    if codes.max() > largest or codes.min() < -largest - 1:
        return f"A code beyond {-largest - 1} to {largest} does not fit into {bits} bits: hold it at the end."
    return "Round to the nearest whole number: cutting off makes the error twice as large."
