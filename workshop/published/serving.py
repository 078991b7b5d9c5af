"""Published figures of servers, predicted again, and what is fitted on them.

Each table `data/published/serving_*.csv` is one source: a program, its authors' machine and day. Three kinds
of value: `tokens_per_second` of the whole batch, prompts included; `ttft_seconds`, the first token of a
request alone; `itl_seconds`, between two tokens while requests come and go.

**Fitted**, on all sources together: the latency of a small all-reduce, what unpacking of 8- and 4-bit
weights leaves of the bandwidth, and llama.cpp's kernels a layer. **Chosen** with all rows in view, so that
the errors are a little kinder than those of rows nobody has seen: `overlap`, `attention`, the ten kernels and
four of experts, whose constants a device without any takes, and lmdeploy's 18 us (32 KiB over 8 ranks of an
H200 through NCCL, `allreduce_busbw_by_payload.csv`). The bandwidth that kernels reach is the one of training
(0.85 of the sheet's; gpt-fast's README says that its A100 reach about 1,700 GB/s).

**Left out**: for the errors and the intervals each source is predicted with constants that were fitted on
the others. What no other source can tell (only gpt-fast's is int8, one source ran llama.cpp) has then its
value before any fit: nothing is lost to unpacking, ten kernels a layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workshop.facts.layout import Layout
from workshop.facts.published import FOLDER, published_table
from workshop.facts.run import Run
from workshop.facts.serving import Serving
from workshop.predict.interval import bars
from workshop.predict.serving.engines import Engine, engine
from workshop.predict.serving.prediction import (
    BETWEEN,
    THROUGHPUT,
    TTFT,
    ServingPrediction,
    predict_serving,
)

SOURCES = ("gpt_fast", "lmdeploy", "tensorrt_llm", "llama_cpp", "nim")
QUANTITY = {"tokens_per_second": THROUGHPUT, "ttft_seconds": TTFT, "itl_seconds": BETWEEN}
PROGRAMS = {"nim": "tensorrt-llm"}
"""NIM serves with TensorRT-LLM."""
OLD_GQA = "grouped-query attention before 0.7, whose kernels the source itself calls 2.4 times too slow"
HEAD = ("rows", "error", "median", "left out", "worst", "inside")
FULL = 0.95
"""Share of memory that these benchmarks gave to weights and cache."""


@dataclass(frozen=True)
class ServedRow:
    """A published figure: what was served, and what was measured."""

    source: str
    line: int
    serving: Serving
    engine: str
    prompt: int
    output: int
    batch: int
    quantity: str
    value: float
    where: str

    def predicted(self, program: Engine | None = None) -> float:
        """The same quantity, predicted, in the same unit."""
        prediction = self.prediction(program)
        if self.quantity == BETWEEN:
            return prediction.between_tokens_loaded
        return float(getattr(prediction, self.quantity))

    def prediction(self, program: Engine | None = None) -> ServingPrediction:
        """The whole prediction."""
        return predict_serving(self.serving, self.prompt, self.output, self.batch, program or self.engine)


def read_rows(folder: Path = FOLDER) -> tuple[list[ServedRow], list[tuple[str, int, str]]]:
    """All rows that are predicted, and the others as (source, line, reason)."""
    rows, left = [], []
    for source in SOURCES:
        for line, cells in enumerate(published_table(f"serving_{source}", folder), start=2):
            row = _row(source, line, cells)
            reason = _not_predicted(row)
            if reason:
                left.append((source, line, reason))
            else:
                rows.append(row)
    return rows, left


def _row(source: str, line: int, cells: dict[str, str]) -> ServedRow:
    tensor, batch, prompt, output = (
        int(cells[n]) for n in ("tensor", "batch", "prompt_tokens", "output_tokens")
    )
    run = Run(
        cells["model"],
        f"{tensor}x{cells['device']}",
        Layout(tensor=tensor),
        micro_batch=batch,
        seq_len=prompt + output,
    )
    whole = cells["engine"] == "gpt-fast"  # it quantizes every linear map, the head too
    serving = Serving(run, cells["weights"], cells["kv"], memory_share=FULL, quantized_head=whole)
    return ServedRow(
        source,
        line,
        serving,
        PROGRAMS.get(cells["engine"], cells["engine"]),
        prompt,
        output,
        batch,
        QUANTITY[cells["quantity"]],
        float(cells["value"]),
        cells["source"],
    )


def _not_predicted(row: ServedRow) -> str:
    model = row.serving.model
    old = row.source == "tensorrt_llm" and "v0.7" not in row.where and row.quantity == THROUGHPUT
    if old and model.num_kv_heads < model.num_heads:
        return OLD_GQA
    prediction = row.prediction()
    if not prediction.fits:
        most = prediction.capacity.requests(row.prompt + row.output)
        return f"{row.batch} requests do not fit at once ({most} do); those that waited are not modelled"
    return ""


@dataclass(frozen=True)
class ServingConstants:
    """What is fitted. `all_reduce` in seconds; the others as in `engines`."""

    all_reduce: float = 0.0
    int8: float = 1.0
    int4: float = 1.0
    llama_cpp: float = 10.0

    def applied(self, program: Engine) -> Engine:
        """A program with these constants instead of those that are kept."""
        unpack = {name: self.int8 if name == "int8" else self.int4 for name in program.unpack}
        changed = replace(program, unpack=unpack)
        if program.name == "llama.cpp":
            return replace(changed, kernels=self.llama_cpp)
        if program.name == "lmdeploy":
            return changed
        return replace(changed, all_reduce_seconds=self.all_reduce)


GRID = {
    "all_reduce": tuple(i * 1e-6 for i in range(26)),
    "int8": tuple(i / 100 for i in range(60, 101)),
    "int4": tuple(i / 100 for i in range(60, 101)),
    "llama_cpp": tuple(float(i) for i in range(10, 51)),
}


def _speaks(name: str, row: ServedRow) -> bool:
    """Whether a row can tell a constant."""
    if name == "llama_cpp":
        return row.engine == "llama.cpp"
    if name == "all_reduce":
        served = row.serving
        decodes = row.quantity != TTFT and served.weights in ("bf16", "fp8")
        return served.tensor > 1 and row.engine != "lmdeploy" and decodes
    alone = row.engine == "gpt-fast" and row.serving.tensor == 1
    return alone and row.serving.weights.startswith(name)


def fit(rows: Iterable[ServedRow]) -> ServingConstants:
    """The constants that make the mean |log error| least; where no row speaks, its value before any fit."""
    rows, constants = list(rows), ServingConstants()
    for name in GRID:
        telling = tuple(row for row in rows if _speaks(name, row))
        if telling:
            constants = replace(constants, **{name: _best(name, telling)})
    return constants


@cache
def _best(name: str, telling: tuple[ServedRow, ...]) -> float:
    """The value of one constant. Each row depends on one of them alone, so they are found one by one."""

    def error(value: float) -> float:
        constants = replace(ServingConstants(), **{name: value})
        return float(np.mean([abs(_residual(row, constants)) for row in telling]))

    return min(GRID[name], key=error)


def _residual(row: ServedRow, constants: ServingConstants) -> float:
    """log(measured / predicted)."""
    return float(np.log(row.value / row.predicted(constants.applied(engine(row.engine)))))


@dataclass(frozen=True)
class Residual:
    """A row with log(measured / predicted), its source left out of the fit or not."""

    row: ServedRow
    log: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return float(np.exp(-self.log) - 1)


def left_out(rows: list[ServedRow]) -> list[Residual]:
    """Every row predicted with constants that were fitted on the other sources."""
    residuals = []
    for source in SOURCES:
        constants = fit(row for row in rows if row.source != source)
        residuals += [Residual(row, _residual(row, constants)) for row in rows if row.source == source]
    return residuals


def kept(rows: list[ServedRow]) -> list[Residual]:
    """Every row predicted with the constants that are kept."""
    return [Residual(row, float(np.log(row.value / row.predicted()))) for row in rows]


def margins(residuals: list[Residual]) -> dict[str, tuple[float, float]]:
    """p10 and p90 of log(measured / predicted) by quantity; each source counts alike.

    Time between tokens is read off rows whose time is nearly all decode: `itl_seconds`, and throughput of
    answers at least as long as their prompts.
    """
    groups = {
        TTFT: [one for one in residuals if one.row.quantity == TTFT],
        THROUGHPUT: [one for one in residuals if one.row.quantity == THROUGHPUT],
        BETWEEN: [one for one in residuals if one.row.quantity == BETWEEN or _decodes(one.row)],
    }
    by_quantity = {}
    for name, group in groups.items():
        logs = np.array(
            [-o.log if name == BETWEEN and o.row.quantity == THROUGHPUT else o.log for o in group]
        )
        sizes = {s: sum(o.row.source == s for o in group) for s in {o.row.source for o in group}}
        weights = np.array([1 / sizes[o.row.source] for o in group])
        by_quantity[name] = (_quantile(logs, weights, 0.1), _quantile(logs, weights, 0.9))
    return by_quantity


def _decodes(row: ServedRow) -> bool:
    return row.quantity == THROUGHPUT and row.output >= row.prompt and row.output > 1


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order]) / weights.sum()
    return round(float(values[order][np.searchsorted(total, share)]), 4)


def intervals(rows: list[ServedRow]) -> dict[str, Any]:
    """The section `intervals` of `predict/data/serving.toml`, estimated from rows.

    `wider.engine` is how much larger |log error| is, on average, of programs that one source alone served
    with, when that source is left out. `wider.device` is that of steps of training (`predict.interval`): each
    of these tables has devices of its own, and no two programs ran on more than three of them.
    """
    without, with_all = left_out(rows), kept(rows)
    wider = np.mean([abs(one.log) for one in without]) / np.mean([abs(one.log) for one in with_all])
    return {
        "devices": sorted({row.serving.run.cluster.device.name for row in rows}),
        **{name: list(margin) for name, margin in margins(without).items()},
        "wider": {"engine": round(float(wider), 2), "device": bars("time").wider["device"]},
    }


def summary(rows: list[ServedRow], left: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Errors by source and quantity: with the constants that are kept, and with the source left out."""
    both = list(zip(kept(rows), left_out(rows), strict=True))
    summaries = []
    for source in SOURCES:
        for quantity in (TTFT, BETWEEN, THROUGHPUT):
            mine = [pair for pair in both if (pair[0].row.source, pair[0].row.quantity) == (source, quantity)]
            if not mine:
                continue
            inside = [one.row.prediction().interval(quantity) for one, _ in mine]
            shift = [one.row.predicted() / getattr(one.row.prediction(), quantity) for one, _ in mine]
            held = [
                span.times(by).holds(one.row.value)
                for span, by, (one, _) in zip(inside, shift, mine, strict=True)
            ]
            summaries.append(
                {
                    "table": f"serving_{source}",
                    "quantity": quantity,
                    "rows": len(mine),
                    "mean_error": float(np.mean([abs(one.error) for one, _ in mine])),
                    "median_signed_error": float(np.median([one.error for one, _ in mine])),
                    "left_out_mean_error": float(np.mean([abs(one.error) for _, one in mine])),
                    "worst_error": max((one.error for one, _ in mine), key=abs),
                    "inside_interval": float(np.mean(held)),
                    "skipped": sum(one[0] == source for one in left),
                }
            )
    return summaries


def text(summaries: list[dict[str, Any]], left: list[tuple[str, int, str]]) -> str:
    """What a person reads."""
    lines = [
        "predicted again: mean and median error with the constants that are kept; mean error with the source",
        "left out of the fit; inside: share of rows between p10 and p90",
        f"{'table':<22}{'quantity':<21}" + "".join(f"{word:>9}" for word in HEAD),
    ]
    lines += [
        f"{one['table']:<22}{one['quantity']:<21}{one['rows']:>9}{one['mean_error']:>9.1%}"
        f"{one['median_signed_error']:>+9.1%}{one['left_out_mean_error']:>9.1%}{one['worst_error']:>+9.0%}"
        f"{one['inside_interval']:>9.0%}"
        for one in summaries
    ]
    reasons = Counter(
        (source, re.sub(r"\b\d+ (?=requests|do\b)", "N ", reason)) for source, _, reason in left
    )
    lines += [f"not predicted: {count} rows of serving_{s}: {why}" for (s, why), count in reasons.items()]
    return "\n".join(lines)
