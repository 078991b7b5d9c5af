"""Exercise: model FLOPs utilization from a training log.

PaLM, arXiv:2204.02311, appendix B. What the model needs counts, not what the hardware does: recomputation is
left out, or wasting time would look like using it. The steps of the logs differ in tokens and in seconds, so
that a mean of rates is not the rate.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

Log = list[tuple[int, float]]

SLOW_START = [(4_096, 9.0), (4_096, 1.0), (4_096, 1.1), (4_096, 3.9), (2_048, 0.4)]  # one step saved a file
CALLS = (
    Call((SLOW_START, 6 * 7e9, 1, 312e12)),
    Call(([(4_000_000, 60.0), (4_000_000, 20.0), (4_000_000, 4.0)], 6 * 70e9, 1024, 989e12, 2)),
    Call(([(2_000, 4.0), (1_000, 1.0)], 1e9, 4, 1e12), {"warm_up": 0}),
)


def _rate(log: Log, warm_up: int = 1) -> float:
    steady = log[warm_up:]
    return sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)


def _mean_rate(log: Log, warm_up: int = 1) -> float:
    rates = [tokens / took for tokens, took in log[warm_up:]]
    return sum(rates) / len(rates)


def _right(log: Log, flops: float, devices: int, peak: float, warm_up: int = 1) -> float:
    return _rate(log, warm_up) * flops / (devices * peak)


MISTAKES = (
    Mistake(
        lambda log, f, n, peak, *_, **__: _rate(log) * f / (n * peak),
        "This leaves out one step, whatever `warm_up` is. Only `log[warm_up:]` counts.",
    ),
    Mistake(
        lambda log, f, n, peak, *_, **__: _rate(log, 0) * f / (n * peak),
        "The first steps are in it, and they are slower than the rest. Only `log[warm_up:]` counts.",
    ),
    Mistake(
        lambda log, f, n, peak, warm_up=1: _mean_rate(log, warm_up) * f / (n * peak),
        "That is a mean of the steps' rates, in which a short step counts as much as a long one. The rate of "
        "the run is all its tokens over all its seconds.",
    ),
    Mistake(
        lambda log, f, _, peak, warm_up=1: _rate(log, warm_up) * f / peak,
        "That is how many devices at full speed would be enough. Divide by `num_devices`.",
    ),
    Mistake(
        lambda log, f, n, peak, warm_up=1: n * _rate(log, warm_up) * f / peak,
        "All tokens are already counted, those of all devices. So divide by `num_devices`.",
    ),
    Mistake(
        lambda *given, **named: 100 * _right(*given, **named),
        "That is in per cent. A share runs from 0 to 1.",
    ),
    Mistake(
        lambda *given, **named: 1 / _right(*given, **named),
        "Upside down: divide what was needed by what the devices could do.",
    ),
    Mistake(
        lambda *given, **named: 6 * _right(*given, **named),
        "`flops_per_token` already holds forward and backward: the 6 is in it.",
    ),
    Mistake(
        lambda *given, **named: 4 / 3 * _right(*given, **named),
        "A repeated forward pass is work of the hardware, not of the model. With it, the result is the HFU.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three logs against all tokens over all seconds, times FLOPs a token, over the peak."""
    compare(names["mfu"], "mfu", CALLS, _right, MISTAKES)
    return "A 7B model on one A100: 30 %, although its usual step reaches more than half of the peak."
