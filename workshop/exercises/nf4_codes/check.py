"""Exercise: a block of weights in sixteen numbers.

Dettmers et al. 2023, arXiv 2305.14314, section 2 and appendix E: divide by the block's largest absolute
value, take the nearest of the sixteen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

# Appendix E of the paper, as bitsandbytes rounds them.
VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip

Coder = Callable[[Any, Any], tuple[Any, float]]


def _coder(scale: Callable[[Any], float], place: Callable[[Any, Any], Any]) -> Coder:
    def codes(block: Any, values: Any) -> tuple[Any, float]:
        return place(block / scale(block), values), scale(block)

    return codes


def _nearest(x: Any, values: Any) -> Any:
    import numpy as np

    return np.abs(x[:, None] - values).argmin(axis=1)


def _below(x: Any, values: Any) -> Any:
    import numpy as np

    return (np.searchsorted(values, x, side="right") - 1).clip(0, 15)


def _absmax(block: Any) -> float:
    return float(abs(block).max())


_right = _coder(_absmax, _nearest)
LARGEST = "That is the largest weight. The largest *absolute* value is larger: a negative one."
UNDIVIDED = "The block is not divided by its absmax: small weights all become code 7."
BELOW = "Those are the next values *below*. The nearest may be the one above."
MISTAKES: tuple[tuple[Coder, str], ...] = (
    (_coder(lambda block: float(block.max()), _nearest), LARGEST),
    (lambda block, values: (_nearest(block, values), _absmax(block)), UNDIVIDED),
    (_coder(_absmax, _below), BELOW),
)


def _blocks() -> list[Any]:
    import numpy as np

    drawn = np.random.default_rng(0).standard_normal(64) * 0.02
    drawn[5] = -0.09
    return [np.array([0.5, -1.0, 0.25, 0.0]), drawn]


def check(names: dict[str, Any]) -> str:
    """Four weights one can follow, and a block whose largest weight is negative."""
    import numpy as np

    values = np.array(VALUES)
    for block in _blocks():
        answer = call(names["nf4_codes"], "nf4_codes", Call((block, values)))
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise Wrong(f"`nf4_codes` gave {shown(answer)}; wanted the codes and absmax.")
        codes, absmax = np.asarray(answer[0]), float(answer[1])
        wanted, scale = _right(block, values)
        if codes.shape == wanted.shape and (codes == wanted).all() and abs(absmax - scale) < 1e-12:
            continue
        why = next((sentence for mistake, sentence in MISTAKES if _same(mistake(block, values), codes)), "")
        weights, given, right = (shown(v[:4].tolist()) for v in (block.round(3), codes, wanted))
        raise Wrong(
            f"For {weights}... the codes are {given} and absmax {shown(absmax)}; wanted {right} and "
            f"{shown(scale)}. {why}".rstrip()
        )
    return "Four bits a weight, and one absmax for 64 of them: bitsandbytes' own codes."


def _same(answer: tuple[Any, float], codes: Any) -> bool:
    return bool(answer[0].shape == codes.shape and (answer[0] == codes).all())
