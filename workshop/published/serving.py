"""Published figures of servers, predicted again, and what is fitted on them.

Each table `data/published/serving_*.csv` is one source: a program, its authors' machine and day. Three kinds of
value: `tokens_per_second` of the whole batch, prompts included; `ttft_seconds`, the first token of a request
alone; `itl_seconds`, between two tokens while requests come and go.

**Fitted**, on all sources together: the latency of a small all-reduce, what unpacking of 8- and 4-bit weights
leaves of the bandwidth, and llama.cpp's kernels a layer. **Chosen** with all rows in view, so that the errors
are a little kinder than those of rows nobody has seen: `stream` (of which gpt-fast's README says itself that 1,700
of an A100's 2,039 GB/s are reached), `cache`, `overlap`, `attention`, the ten kernels, lmdeploy's 18 us
(32 KiB over 8 ranks of an H200 through NCCL, `allreduce_busbw_by_payload.csv`).

**Left out**: for the errors and the intervals each source is predicted with constants that were fitted on the
others. What no other source can tell (only gpt-fast serves int8, only llama.cpp's authors ran it) has then its
value before any fit: nothing is lost to unpacking, ten kernels a layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from workshop.facts.layout import Layout
from workshop.facts.published import FOLDER, published_table
from workshop.facts.run import Run
from workshop.facts.serving import Serving
from workshop.predict.serving.engines import Engine, engine, engines
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
        found = self.prediction(program)
        if self.quantity == BETWEEN:
            return found.between_tokens_loaded
        return float(getattr(found, self.quantity))

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
    found = row.prediction()
    if not found.fits:
        most = found.capacity.requests(row.prompt + row.output)
        return f"{row.batch} requests do not fit at once ({most} do), and the others waited: queues are not modelled"
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
    "all_reduce": tuple(i * 1e-6 for i in range(0, 41)),
    "int8": tuple(np.round(np.arange(0.5, 1.001, 0.01), 2).tolist()),
    "int4": tuple(np.round(np.arange(0.5, 1.001, 0.01), 2).tolist()),
    "llama_cpp": tuple(float(i) for i in range(10, 61)),
}


def _speaks(name: str, row: ServedRow) -> bool:
    """Whether a row can tell a constant."""
    if name == "llama_cpp":
        return row.engine == "llama.cpp"
    if name == "all_reduce":
        served = row.serving
        decodes = row.quantity != TTFT and served.weights in ("bf16", "fp8")
        return served.tensor > 1 and row.engine != "lmdeploy" and decodes
    return row.engine == "gpt-fast" and row.serving.weights.startswith(name)


def fit(rows: Iterable[ServedRow]) -> ServingConstants:
    """The constants that make the mean |log error| least; where no row speaks, its value before any fit."""
    rows, found = list(rows), ServingConstants()
    for name in ("all_reduce", "int8", "int4", "llama_cpp"):
        telling = [row for row in rows if _speaks(name, row)]
        if not telling:
            continue
        errors = [
            float(np.mean(np.abs([_residual(row, replace(found, **{name: value})) for row in telling])))
            for value in GRID[name]
        ]
        found = replace(found, **{name: GRID[name][int(np.argmin(errors))]})
    return found


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
    found = []
    for source in SOURCES:
        constants = fit(row for row in rows if row.source != source)
        found += [Residual(row, _residual(row, constants)) for row in rows if row.source == source]
    return found


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
    found = {}
    for name, group in groups.items():
        logs = np.array(
            [-o.log if name == BETWEEN and o.row.quantity == THROUGHPUT else o.log for o in group]
        )
        sizes = {s: sum(o.row.source == s for o in group) for s in {o.row.source for o in group}}
        weights = np.array([1 / sizes[o.row.source] for o in group])
        found[name] = (_quantile(logs, weights, 0.1), _quantile(logs, weights, 0.9))
    return found


def _decodes(row: ServedRow) -> bool:
    return row.quantity == THROUGHPUT and row.output >= row.prompt and row.output > 1


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order]) / weights.sum()
    return round(float(values[order][np.searchsorted(total, share)]), 4)


def devices(rows: list[ServedRow]) -> list[str]:
    """Devices that rows were measured on."""
    return sorted({row.serving.run.cluster.device.name for row in rows})


def programs() -> list[str]:
    """Programs that rows were measured with."""
    return sorted(name for name, program in engines().items() if program.measured)
