"""Exercise: a router: the best experts of each token, and their weights.

The router of Mixtral (Jiang et al. 2024, arXiv 2401.04088, section 2.1): a softmax over the chosen logits,
which is the same as the chosen ones of all scores, divided by their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

SCORES = ((0.1, 0.4, 0.2, 0.3), (0.62, 0.05, 0.3, 0.03), (0.15, 0.2, 0.05, 0.6))
READABLE = tuple(tuple(log(score) for score in row) for row in SCORES)
LARGE = ((1000.0, 3.0, 998.0, 999.0), (-1000.0, -999.0, -1001.0, -998.0))
CASES = ((READABLE, 2), (READABLE, 1), (READABLE, 3), (LARGE, 2))
TOLERANCE = 1e-5

Rows = Any  # a numpy array; numpy is imported when a check runs
Answer = tuple[Rows, Rows]


def check(names: dict[str, Any]) -> str:
    """Scores one can read, with one, two and three experts, then logits whose exponentials overflow."""
    import numpy as np

    answers = [_asked(names["route"], *case) for case in CASES]
    readable = [
        (one, (np.array(rows), k)) for one, (rows, k) in zip(answers, CASES, strict=True) if rows is not LARGE
    ]
    advice = next(
        (
            sentence
            for formula, sentence in MISTAKES
            if all(_same(one, formula(*case)) for one, case in readable)
        ),
        "",
    )
    for number, one in enumerate(answers):
        for token in range(len(one[0])):
            _compare(one, number, token, advice)
    return "Three tokens with one, two and three experts each, and two tokens with large logits: all right."


def _asked(route: Any, rows: tuple[tuple[float, ...], ...], k: int) -> Answer:
    """What the learner's function gives for a tensor of these rows, as arrays of the right shape."""
    import numpy as np
    import torch

    written = f"route(logits, {k})"
    answer = call(route, "route", Call((torch.tensor(rows), k)))
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Wrong(f"`{written}` gave {shown(answer)}; wanted two tensors: weights and numbers of experts.")
    for what, one in zip(("weights", "numbers"), answer, strict=True):
        if not isinstance(one, torch.Tensor) or tuple(one.shape) != (len(rows), k):
            shape = tuple(one.shape) if isinstance(one, torch.Tensor) else shown(one)
            raise Wrong(
                f"`{written}` gave {what} of shape {shape} for {len(rows)} tokens; wanted {(len(rows), k)}."
            )
    weights, chosen = answer
    if chosen.is_floating_point():
        raise Wrong(
            f"The numbers that `{written}` gave for the first token are {_row(chosen[0].tolist())}; wanted "
            "whole numbers, those of the experts. In what you return, the weights come first."
        )
    return np.array(weights.tolist()), np.array(chosen.tolist())


def _compare(answer: Answer, number: int, token: int, advice: str) -> None:
    """One token of one case."""
    import numpy as np

    rows, k = CASES[number]
    right = _right(np.array(rows), k)
    weights, chosen, wanted, best = (part[token].tolist() for part in (*answer, *right))
    if chosen == best and np.allclose(weights, wanted, atol=TOLERANCE, rtol=0):
        return
    if number == len(CASES) - 1 and not np.isfinite(answer[0]).all():
        advice = (
            "In fp32, exp(1,000) is infinite and exp(-1,998) is 0: subtract the largest logit of each token, "
            "as `softmax` does."
        )
    elif sorted(_pairs(weights, chosen)) == sorted(_pairs(wanted, best)):
        advice = "These are the right experts with the right weights, but in another order: best first."
    what = f"logits {_row(rows[token])}" if rows is LARGE else f"scores {_row(SCORES[token])}"
    raise Wrong(
        f"For a token with the {what}, and k = {k}: weights {_row(weights)} of the experts {chosen}; wanted "
        f"{_row(wanted)} of {best}. {advice}".rstrip()
    )


def _pairs(weights: list[float], chosen: list[int]) -> list[tuple[int, float]]:
    return [(expert, round(weight, 4)) for expert, weight in zip(chosen, weights, strict=True)]


def _row(values: Any) -> str:
    return "[" + ", ".join(f"{value:,.4g}" for value in values) + "]"


def _softmax(logits: Rows, axis: int = -1) -> Rows:
    import numpy as np

    shifted = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def _best(scores: Rows, k: int) -> Answer:
    import numpy as np

    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(scores, chosen, axis=-1), chosen


def _scaled(best: Answer) -> Answer:
    return best[0] / best[0].sum(axis=-1, keepdims=True), best[1]


def _right(logits: Rows, k: int) -> Answer:
    return _scaled(_best(_softmax(logits), k))


def _not_scaled(logits: Rows, k: int) -> Answer:
    return _best(_softmax(logits), k)


def _twice(logits: Rows, k: int) -> Answer:
    best, chosen = _best(_softmax(logits), k)
    return _softmax(best), chosen


def _along_tokens(logits: Rows, k: int) -> Answer:
    return _scaled(_best(_softmax(logits, 0), k))


def _one_sum(logits: Rows, k: int) -> Answer:
    best, chosen = _best(_softmax(logits), k)
    return best / best.sum(), chosen


def _of_logits(logits: Rows, k: int) -> Answer:
    return _scaled(_best(logits, k))


def _worst(logits: Rows, k: int) -> Answer:
    import numpy as np

    scores = _softmax(logits)
    chosen = np.argsort(scores, axis=-1, kind="stable")[:, :k]
    return _scaled((np.take_along_axis(scores, chosen, axis=-1), chosen))


def _numbers_sorted(logits: Rows, k: int) -> Answer:
    import numpy as np

    weights, chosen = _right(logits, k)
    return weights, np.sort(chosen, axis=-1)


MISTAKES: tuple[tuple[Callable[[Rows, int], Answer], str], ...] = (
    (_not_scaled, "A token's weights do not add up to one. Divide the chosen scores by their sum."),
    (
        _twice,
        "That is a second softmax, over scores that come from one. Divide the chosen scores by their sum.",
    ),
    (_along_tokens, "That is a softmax along the tokens. A token's scores add up to one over the experts."),
    (_one_sum, "That is one sum for all tokens. Each token divides by the sum of its own k scores."),
    (
        _of_logits,
        "These are shares of logits, not of scores: logits may be negative. Take the softmax first.",
    ),
    (_worst, "These are the k worst experts."),
    (
        _numbers_sorted,
        "If you sort the numbers alone, they come apart: each weight must stay with its expert.",
    ),
)


def _same(one: Answer, other: Answer) -> bool:
    import numpy as np

    return np.array_equal(one[1], other[1]) and np.allclose(one[0], other[0], atol=TOLERANCE, rtol=0)
