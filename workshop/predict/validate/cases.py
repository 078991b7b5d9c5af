"""A published row as something that can be predicted.

A `Case` holds what a table's row says was run, in this package's words, and one measured number.
`predict_cases` predicts many at once: those that share model, cluster, stack and format go through the time
model as one grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from workshop.facts import catalogue
from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.precision import precision
from workshop.predict.flops import forward_flops, megatron_flops
from workshop.predict.grid import Grid
from workshop.predict.rates import Rates, Software, rates_of, software
from workshop.predict.setting import Setting
from workshop.predict.step_arrays import predict_steps

SECONDS, TOKENS, MODEL, HARDWARE, MFU = (
    "seconds_per_step",
    "tokens_per_second_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "mfu_percent",
)


@dataclass(frozen=True)
class Case:
    """One row: what was run, and what was measured (`measured`, in the unit that `quantity` names)."""

    table: str
    group: str
    row: int
    quantity: str
    measured: float
    model: ModelSpec
    cluster: str
    seq_len: int
    stack: str
    recipe: str
    columns: tuple[tuple[str, float], ...]
    dtype: str = ""
    inter: str = ""  # a link of the catalogue between nodes, where it is not the vendor's usual one
    causal_flops: bool = False  # the source's FLOPs leave out what a causal mask leaves out
    megatron_count: bool = False  # the source counts FLOPs by Megatron-LM's formula
    stack_changes: tuple[tuple[str, object], ...] = field(default=())

    @property
    def column(self) -> dict[str, float]:
        """The layout and batch, by the names of `Grid`."""
        return dict(self.columns)


@dataclass(frozen=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    table: str
    row: int
    reason: str


@cache
def _cluster(text: str, inter: str) -> ClusterSpec:
    from dataclasses import replace

    found = catalogue.cluster(text)
    return replace(found, inter=catalogue.link(inter)) if inter else found


def predict_cases(
    cases: Sequence[Case], rates: dict[str, Rates] | None = None, stacks: dict[str, Software] | None = None
) -> np.ndarray:
    """Predicted value of each case, in its own quantity.

    rates, stacks: constants to use instead of the package's own (fitting does).
    """
    predicted = np.empty(len(cases))
    for members in _alike(cases):
        first = cases[members[0]]
        names = sorted({name for i in members for name, _ in cases[i].columns})
        grid = Grid.of_columns(
            **{n: [_whole(cases[i].column.get(n, _default(n))) for i in members] for n in names}
        )
        cluster = _cluster(first.cluster, first.inter)
        constants = (rates or {}).get(cluster.device.name) or rates_of(cluster.device.name)
        stack = changed(((stacks or {}).get(first.stack) or software(first.stack)), first.stack_changes)
        setting = Setting(
            first.model, cluster, first.seq_len, precision(first.recipe), constants, stack, first.dtype
        )
        seconds = predict_steps(setting, grid).seconds
        predicted[members] = _in_quantity(first, seconds, grid, cluster)
    return predicted


def changed(stack: Software, changes: tuple[tuple[str, object], ...]) -> Software:
    """A stack with some of its choices changed."""
    from dataclasses import replace

    return replace(stack, **dict(changes)) if changes else stack  # type: ignore[arg-type]


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _default(name: str) -> int:
    return 0 if name in ("zero", "recompute", "sequence_parallel") else 1


def _alike(cases: Sequence[Case]) -> Iterable[list[int]]:
    groups: dict[object, list[int]] = {}
    for index, case in enumerate(cases):
        key = (
            case.model,
            case.cluster,
            case.inter,
            case.seq_len,
            case.stack,
            case.stack_changes,
            case.recipe,
            case.dtype,
            case.quantity,
            case.causal_flops,
            case.megatron_count,
        )
        groups.setdefault(key, []).append(index)
    return groups.values()


def _in_quantity(case: Case, seconds: np.ndarray, grid: Grid, cluster: ClusterSpec) -> np.ndarray:
    """From seconds to what the table reports."""
    if case.quantity == SECONDS:
        return seconds
    tokens = grid.data * grid.micro_batch * grid.accumulation * case.seq_len / grid.world_size
    rate = tokens / seconds
    if case.quantity == TOKENS:
        return rate
    if case.megatron_count:
        per_token = megatron_flops(case.model, case.seq_len, 1.0, case.quantity == HARDWARE)
    else:
        forward = sum(forward_flops(case.model, case.seq_len, case.causal_flops).values())
        per_token = 3 * forward + (forward if case.quantity == HARDWARE else 0)
    flops = rate * per_token
    return flops / cluster.device.peak("bf16") * 100 if case.quantity == MFU else flops / 1e12
