"""In which order layouts are proposed, where their predicted times differ by less than is known of them.

The fastest layout on paper is often an odd one: 105 layers on 53 stages, two each and one on the last, on
2,120 of 2,240 devices. That is no fault of the search: a shorter last stage makes room for the output head,
other divisors of the batch become possible, and the model's clock finds a per cent in it. But how well that
clock knows the ratio of two layouts is known too (`interval.Difference`), and it is less well than that. So

1. the layouts that cannot be told apart from the fastest are a tie, and come before all others;
2. in the tie, plain layouts come first: equal layers on every stage (embedding and head counted as a layer
   each, where that makes them equal), and no device idle that another layout could use;
3. among equally plain ones, and among all that the tie leaves behind, the one comes first whose time is the
   shortest in a bad case: p90 of its interval. A layout with more doubts has to be faster to come first.

An odd layout is proposed first where it gains more than the ratio may be wrong, and only there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workshop.facts.run import Run
from workshop.predict.case import Setting
from workshop.predict.interval import difference, time_interval
from workshop.predict.layouts import Layouts
from workshop.predict.time.search import search_steps
from workshop.predict.time.step import CAUSES

SLOWER = 1.6  # proposals are looked for among layouts at most so much slower than the fastest
POOL = 4000  # of the fastest layouts are put in order


@dataclass(frozen=True)
class Ranked:
    """Layouts in the order in which to propose them: their indices, and how many of them are the tie."""

    order: np.ndarray
    tied: int


def ranked(
    setting: Setting,
    layouts: Layouts,
    seconds: np.ndarray,
    run_at: Callable[[int], Run],
    passes: Callable[[int], bool],
) -> Ranked:
    """The fastest layouts, in the order of the module's docstring.

    Args:
        seconds: of each layout; infinite where it does not fit.
        run_at: entry i as a run. passes: whether entry i passes the full memory model.
    """
    order = np.argsort(seconds, kind="stable")[:POOL]
    order = order[np.isfinite(seconds[order]) & (seconds[order] <= SLOWER * seconds[order[0]])]
    start = next((place for place, i in enumerate(order) if passes(int(i))), None)
    if start is None:
        return Ranked(order[:0], 0)
    order = order[start:]
    some = layouts.take(order)
    causes = by_cause(setting, some)
    apart = np.log(seconds[order] / seconds[order[0]]) > difference().margin(causes, causes[:1])
    worst = seconds[order] * upper_ends(setting, some, lambda i: run_at(int(order[i])))
    plainness = np.where(apart, 0, oddness(setting.model.num_layers, some))
    return Ranked(order[np.lexsort((worst, plainness, apart))], int((~apart).sum()))


def by_cause(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Seconds by cause of each layout: [layouts, causes]."""
    steps = search_steps(setting, layouts)
    return np.stack([np.broadcast_to(getattr(steps, cause), len(layouts)) for cause in CAUSES], axis=1)


def uneven(num_layers: int, layouts: Layouts) -> np.ndarray:
    """Whether stages have unequal numbers of layers; embedding and head may count as a layer each."""
    chunks = layouts.pipeline * layouts.virtual_stages
    counted = np.where(layouts.first_layers >= 0, num_layers + 2, num_layers)
    return np.asarray(counted % chunks > 0)


def oddness(num_layers: int, layouts: Layouts) -> np.ndarray:
    """Of two things that nobody wants without need, how many a layout has: unequal stages, idle devices."""
    idle = layouts.world_size < layouts.world_size.max()
    return uneven(num_layers, layouts).astype(int) + idle


def upper_ends(setting: Setting, layouts: Layouts, run_at: Callable[[int], Run]) -> np.ndarray:
    """p90 over the prediction, of each layout; layouts with the same doubts have the same."""
    nodes = -(-layouts.world_size // setting.cluster.devices_per_node)
    kinds = np.stack([np.searchsorted([2, 9], nodes, side="right"), layouts.pipeline > 1])
    _, first, which = np.unique(kinds, axis=1, return_index=True, return_inverse=True)
    ends = [time_interval(run_at(int(i)), setting.stack.name, 1.0).upper for i in first]
    return np.asarray(ends)[which.ravel()]
