"""How many tokens: the loss that a model of N parameters reaches on D tokens, and the best split of FLOPs.

Hoffmann et al. (arXiv 2203.15556, equation 10, approach 3) fitted

    L(N, D) = E + A / N^alpha + B / D^beta        E 1.69, A 406.4, B 410.7, alpha 0.34, beta 0.28

on models up to 16 billion parameters. Their rule of thumb (table 3) is about 20 tokens a parameter, so that C
= 6 N D FLOPs train best at N = sqrt(C / 120). The fitted constants alone would ask for more tokens and fewer
parameters at large C. Besiroglu et al. (arXiv 2404.10102) found an error in the fit and fitted the same runs
again, read off a figure:

                                                    E 1.8172, A 482.01, B 2085.43, alpha 0.3478, beta 0.3658

Both leave the models that they were fitted on far behind at 70 billion parameters. So take the loss for
comparing neighbours, not for its third digit, and a conclusion only where both agree.

Who trains a model to be used takes a smaller one and more tokens: Llama 3 70B saw 214 a parameter. What that
costs in training is paid back by use, at 2 FLOPs a parameter and token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

TOKENS_PER_PARAM = 20.0


@dataclass(frozen=True)
class LossFit:
    """The five constants of L(N, D), in nats a token."""

    e: float
    a: float
    b: float
    alpha: float
    beta: float


HOFFMANN = LossFit(1.69, 406.4, 410.7, 0.34, 0.28)
BESIROGLU = LossFit(1.8172, 482.01, 2085.43, 0.3478, 0.3658)


@dataclass(frozen=True)
class ComputeOptimal:
    """Parameters and tokens that C FLOPs are best spent on, by the rule of 20 tokens a parameter."""

    params: float
    tokens: float


def compute_optimal(flops: float) -> ComputeOptimal:
    """C = 6 N D with D = 20 N. ValueError unless flops is positive."""
    _positive("flops", flops)
    params = sqrt(flops / (6 * TOKENS_PER_PARAM))
    return ComputeOptimal(params, TOKENS_PER_PARAM * params)


def fitted_loss(params: float, tokens: float, fit: LossFit = HOFFMANN) -> float:
    """Mean loss in nats a token, as fitted on Hoffmann et al.'s data."""
    _positive("params", params)
    _positive("tokens", tokens)
    return fit.e + fit.a / params**fit.alpha + fit.b / tokens**fit.beta


def tokens_for_loss(params: float, loss: float, fit: LossFit = HOFFMANN) -> float:
    """Tokens after which a model of so many parameters reaches the loss.

    ValueError where it never does, with the least loss that it can reach.
    """
    endless = fit.e + fit.a / params**fit.alpha
    left = loss - endless
    if left <= 0:
        raise ValueError(
            f"{params:.3g} parameters never reach a loss of {loss}: with endless tokens "
            f"{endless:.3f}; use a larger model"
        )
    return float((fit.b / left) ** (1 / fit.beta))


def served_to_break_even(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Tokens of use after which the smaller model's dearer training is paid back.

    small, large: (parameters, training tokens). 6 FLOPs a parameter and token to train, 2 to use.
    Zero where the smaller is cheaper to train, too.
    """
    (n, d), (m, t) = small, large
    if n >= m:
        raise ValueError(f"small has {n:.3g} parameters and large {m:.3g}: give the smaller one first")
    return max(0.0, 6 * (n * d - m * t) / (2 * (m - n)))


def _positive(what: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{what} is {value}; it must be more than 0")
