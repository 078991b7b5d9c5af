"""Exercise: even out a router without a loss.

Each expert has a bias that is added to its score when the best are chosen, and only then. After a step, an
expert with too few choices gets a little more of it, one with too many a little less (Wang et al. 2024,
arXiv:2408.15664, algorithm 1; used for DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "balance_bias"
CASES = (
    ((0.0, 0.0, 0.0, 0.0), (40, 20, 15, 5), 0.01),
    ((0.02, -0.01, 0.0), (7, 7, 7), 0.01),
    ((-0.3, 0.1, 0.2), (1, 2, 9), 0.05),
)


def check(names: dict[str, Any]) -> str:
    """Three steps by number, then a router that prefers one expert, for 300 steps."""
    import numpy as np

    for bias, counts, rate in CASES:
        wanted = np.array(bias) + rate * np.sign(np.mean(counts) - np.array(counts))
        _one(names[NAME], bias, counts, rate, wanted)
    before, after = _largest_share(names[NAME])
    if after > 0.15:
        raise Wrong(
            f"After 300 steps the busiest of 8 experts still has {after:.0%} of all choices ({before:.0%} at "
            "first); the right rule brings it near 12.5 %."
        )
    return f"After 300 steps the busiest of 8 experts has {after:.1%} of all choices; it had {before:.0%}."


def _one(function: Any, bias: Any, counts: Any, rate: float, wanted: Any) -> None:
    import numpy as np

    written = f"balance_bias({list(bias)}, {list(counts)}, {rate})"
    given = np.array(bias)
    answer = call(function, NAME, Call((given, np.array(counts), rate)))
    if not isinstance(answer, np.ndarray) or answer.shape != wanted.shape:
        raise Wrong(f"`{written}` gave {shown(answer)}; wanted an array of {len(bias)} numbers.")
    if not np.array_equal(given, np.array(bias)):
        raise Wrong(f"`{written}` changed the array it was given. Return a new one.")
    if not np.allclose(answer, wanted, atol=1e-12):
        step = np.array(counts) - np.mean(counts)
        advice = ""
        if np.allclose(answer, given + rate * np.sign(step)):
            advice = "It goes the wrong way: an expert that has too many choices gets even more."
        elif np.allclose(answer, wanted - given):
            advice = "That is the step alone. Add it to the old bias: the bias adds up over steps."
        elif np.allclose(answer, given - rate * step) or np.allclose(
            answer, given - rate * step / np.mean(counts)
        ):
            advice = "Each step is `rate` up or down, however far an expert is from the mean: take the sign."
        elif np.all(answer >= given):
            advice = "Some must go down. Compare with the mean, not with the busiest."
        raise Wrong(f"`{written}` gave {_row(answer)}; wanted {_row(wanted)}. {advice}".rstrip())


def _row(values: Any) -> str:
    return "[" + ", ".join(f"{value:g}" for value in values) + "]"


def _largest_share(function: Any) -> tuple[float, float]:
    """Of 8 experts, top 2, with scores that favour one: the busiest one's share before and after."""
    import numpy as np

    generator = np.random.default_rng(0)
    bias, shares = np.zeros(8), []
    for _ in range(301):
        scores = generator.normal(size=(512, 8)) * 0.1 + np.linspace(0, 0.4, 8)
        chosen = np.argsort(scores + bias, axis=1)[:, -2:]
        counts = np.bincount(chosen.ravel(), minlength=8)
        shares.append(counts.max() / counts.sum())
        bias = function(bias, counts, 0.005)
    return float(shares[0]), float(np.mean(shares[-20:]))
