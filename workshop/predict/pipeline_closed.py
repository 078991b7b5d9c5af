"""The bubble and the memory of each pipeline schedule, as formulas, for equal stages and free links.

p ranks, m micro-batches, v chunks per rank. F, B and W are the durations of a **stage** (with v chunks per
rank a stage is 1/(p v) of the model): forward, whole backward, and the weight part of the backward. Bubble:

    naive           m (p - 1)(F + B)                                nothing ever overlaps
    gpipe, 1f1b     (p - 1)(F + B)                          Narayanan et al., arXiv 2104.04473, section 2.2
    interleaved,
    breadth-first   (p - 1)(F + B)                          of stages that are v times thinner
    zb-h1           (p - 1)(F + B - 2W)                     Qi et al., arXiv 2401.10241, table 2
    zb-h2, zbv      (p - 1)(F + B - 3W)                     none when forward = input gradient = weight
    gradient dualpipe(v)     (p/2 - 1)(F&B + B - 3W)                 DeepSeek-V3, arXiv 2412.19437; p counts
    *stages*

Activations at the fullest rank, in stage activations: 1 (naive), m (gpipe), min(p, m) (1f1b, zb-h1), 2p - 1
(zb-h2), 2p half-size ones (zbv), p + 1 (dualpipe), p (v + 1) - 1 thin ones (interleaved), m v
(breadth-first).

All of them hold exactly for the orders of this package when W <= F <= B - W (dualpipe: F = B - W; zbv:
F = W = B - W); `play` answers beyond that. The table of published formulas writes ZB2P's and ZBV's bubble as
0 under that very assumption.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workshop.predict.pipeline_events import Durations

Numbers = Any  # a number or an array of them; all arguments broadcast

CHUNKED = ("interleaved", "breadth-first")


def closed_bubble(schedule: str, ranks: Numbers, micro_batches: Numbers, durations: Durations) -> np.ndarray:
    """Seconds that the most patient rank waits; `durations` of one *stage* are numbers or arrays."""
    p, m = np.asarray(ranks), np.asarray(micro_batches)
    f, b = np.asarray(durations.forward, float), np.asarray(durations.backward, float)
    w = b / 2 if durations.weight is None else np.asarray(durations.weight, float)
    pair = f + b if durations.overlapped is None else np.asarray(durations.overlapped, float)
    formulas = {
        "naive": lambda: (p - 1) * m * (f + b),
        "gpipe": lambda: (p - 1) * (f + b),
        "1f1b": lambda: (p - 1) * (f + b),
        "interleaved": lambda: (p - 1) * (f + b),
        "breadth-first": lambda: (p - 1) * (f + b),
        "zb-h1": lambda: (p - 1) * (f + b - 2 * w),
        "zb-h2": lambda: (p - 1) * np.maximum(f + b - 3 * w, 0.0),
        "zbv": lambda: (p - 1) * np.maximum(f + b - 3 * w, 0.0),
        "dualpipe": lambda: (p / 2 - 1) * (pair + b - 3 * w),
        "dualpipev": lambda: (p - 1) * (pair + b - 3 * w),  # p ranks are 2p stages
    }
    return np.asarray(formulas[schedule](), dtype=float)


def closed_in_flight(
    schedule: str, ranks: Numbers, micro_batches: Numbers, chunks: Numbers = 1
) -> np.ndarray:
    """Stage activations alive at once on the fullest rank (a stage is 1/p, 1/(2p) or 1/(p v) of the
    model).
    """
    p, m, v = np.broadcast_arrays(np.asarray(ranks), np.asarray(micro_batches), np.asarray(chunks))
    formulas = {
        "naive": lambda: np.ones_like(p),
        "gpipe": lambda: m,
        "1f1b": lambda: np.minimum(p, m),
        "interleaved": lambda: np.minimum(p * (v + 1) - 1, m * v),
        "breadth-first": lambda: m * v,
        "zb-h1": lambda: np.minimum(p, m),
        "zb-h2": lambda: 2 * p - 1,
        "zbv": lambda: 2 * p,
        "dualpipe": lambda: p + 1,
        "dualpipev": lambda: 2 * p + 1,
    }
    return np.asarray(formulas[schedule]())
