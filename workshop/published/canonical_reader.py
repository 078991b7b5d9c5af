"""From a row of canonical columns to a measured run.

Every refusal names the column and its value. What is empty and not required is assumed, and says so.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop.facts import catalogue
from workshop.facts.checks import nearest
from workshop.facts.device import ClusterSpec
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import Stack, stack, stacks
from workshop.predict.case import NotPredictable
from workshop.published.canonical import (
    ADAPTER_OPTIONS,
    HALVES,
    KERNELS,
    MODEL_KINDS,
    MODEL_OPTIONS,
    RECOMPUTE_OPTIONS,
    SCHEDULE_OPTIONS,
    SHAPE,
    kept_by,
)
from workshop.published.columns import ASSUMED, COLUMNS, REQUIRED
from workshop.published.options import parse, split
from workshop.published.record import MEMORIES, OUT_OF_MEMORY, TIMES, MeasuredRun, Row, Skipped, with_network

USUAL = {
    "tensor": "1",
    "pipeline": "1",
    "virtual_stages": "1",
    "context": "1",
    "expert": "1",
    "schedule": "1f1b",
    "recompute": "none",
    "offload": "none",
    "optimizer": "adamw",
    "zero_stage": "0",
    "sequence_parallel": "no",
}
"""What an empty cell is taken for, and listed as assumed."""


class Cells:
    """The cells of one row: each is read once, and what is empty is noted as assumed."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.assumed: list[tuple[str, str]] = [
            (name.removeprefix(ASSUMED), cell)
            for name, cell in row.items()
            if name.startswith(ASSUMED) and cell
        ]

    def text(self, column: str) -> str:
        """The cell; the usual where it is empty."""
        cell = (self.row.get(column) or "").strip()
        if cell:
            return cell
        if column in REQUIRED:
            raise NotPredictable(f"{column} is empty: {COLUMNS[column]}")
        if column in USUAL:
            self.assumed.append((column, f"{USUAL[column]}: the cell is empty"))
            return USUAL[column]
        return ""

    def value(self, column: str, kind: str) -> Any:
        """The cell as a number or a yes-or-no; None where it is empty and nothing is usual."""
        cell = self.text(column)
        return parse(column, cell, kind) if cell else None

    def degree(self, column: str) -> int:
        """How many ways something is cut: at least 1."""
        return self.degree_with_options(column)[0]

    def degree_with_options(self, column: str) -> tuple[int, dict[str, Any]]:
        """The same, and the options behind it."""
        number, options = self.whole(column)
        if number < 1:
            raise NotPredictable(f"{column} is {number}: give at least 1")
        return number, options

    def whole(self, column: str) -> tuple[int, dict[str, Any]]:
        """A whole number with options."""
        options = {
            "seq_len": {"target": "int", "document": "int"},
            "expert": {"tensor": "int"},
            "data": {"shard": "int"},
            "context": {"method": "str"},
        }
        head, settings = split(column, self.text(column), options.get(column, {}))
        return (int(parse(column, head, "int")) if head else 0), settings


def record_of(row: Row) -> MeasuredRun:
    """The run of a row, and what was measured. Raises NotPredictable with column and value."""
    cells = Cells(row)
    try:
        used = _stack(cells)
        run = _run(cells, used)
        described = MeasuredRun(
            cells.text("name"),
            cells.text("group") or cells.text("name"),
            run,
            used.software,
            stage=cells.value("memory_stage", "int"),
            pass_group=split("schedule", cells.text("schedule"), SCHEDULE_OPTIONS)[1].get("group", 0),
            megatron_count=_megatron_count(cells),
            note=cells.text("note"),
            source=cells.text("source"),
            table=cells.text("table"),
        )
    except ValueError as reason:
        raise NotPredictable(str(reason)) from None
    return replace(described, quantities=_quantities(cells), assumed=tuple(dict.fromkeys(cells.assumed)))


def _run(cells: Cells, used: Stack) -> Run:
    shape, cluster = _model(cells), _cluster(cells)
    layout = _layout(cells, cluster.num_devices)
    if layout.world_size != cluster.num_devices:
        raise NotPredictable(
            f"tensor {layout.tensor} x context {layout.context} x data {layout.data_parallel} x pipeline "
            f"{layout.pipeline} is {layout.world_size}, but num_devices is {cluster.num_devices}"
        )
    seq, lengths = cells.whole("seq_len")
    total = cells.value("global_batch_sequences", "int")
    if total is not None and total < 1:
        raise NotPredictable(f"global_batch_sequences is {total}: give at least 1, or leave it empty")
    run = Run(
        shape,
        cluster,
        layout,
        cells.value("micro_batch_sequences", "int"),
        seq,
        global_batch=total or 0,
        optimizer=cells.text("optimizer"),
        adapter=_adapter(cells),
        target_len=lengths.get("target", 0),
        document_len=lengths.get("document", 0),
        implementation=used.implementation,
    )
    if not total:
        cells.assumed.append(("global_batch_sequences", f"{run.global_batch}: the cell is empty"))
    return run


def _model(cells: Cells) -> ModelSpec:
    name, options = split("model", cells.text("model"), MODEL_OPTIONS)
    given = {field: cells.value(column, MODEL_KINDS[field]) for column, field in SHAPE.items()}
    given = {field: value for field, value in given.items() if value is not None}
    shared = cells.value("shared_experts", "int")
    folded = {key.lower(): key for key in catalogue.models()}
    if name.lower() in folded:
        base = catalogue.model(folded[name.lower()])
        changed = {key: value for key, value in given.items() if getattr(base, key) != value}
        model = base.resized(**changed) if changed else base
        model = replace(model, **options) if options else model
    else:
        lacking = [
            c for c in ("num_layers", "hidden_size", "num_heads", "vocab_size") if SHAPE[c] not in given
        ]
        if lacking:
            raise NotPredictable(
                f"model {name!r} is not in the catalogue{nearest(name, catalogue.models())}, and "
                f"{', '.join(lacking)} are empty: fill the shape, or name one of "
                f"{', '.join(sorted(catalogue.models()))}"
            )
        model = ModelSpec(name, **given, **options)
    if shared:
        model = replace(model, shared_ffn_hidden_size=shared * model.moe_ffn_hidden_size)
    return model


def _cluster(cells: Cells) -> ClusterSpec:
    device, count = cells.text("device"), cells.degree("num_devices")
    known = {name.lower(): name for name in catalogue.devices()}
    if device.lower() not in known:
        raise NotPredictable(
            f"device {device!r} is not known{nearest(device, known)} (known: {', '.join(known.values())})"
        )
    cluster = catalogue.cluster(f"{count}x{known[device.lower()]}")
    per_node, rate = cells.value("devices_per_node", "int"), cells.value("network_gbps_per_device", "float")
    if per_node is not None:
        cluster = replace(cluster, devices_per_node=per_node)
    if rate is not None and rate <= 0:
        raise NotPredictable(f"network_gbps_per_device is {rate}: give Gbit/s above 0, or leave it empty")
    return with_network(cluster, rate) if rate else cluster


def _layout(cells: Cells, devices: int) -> Layout:
    tensor, pipeline = (cells.degree(name) for name in ("tensor", "pipeline"))
    context, method = cells.degree_with_options("context")
    expert, cut = cells.whole("expert")
    data, shared = cells.whole("data")
    if not data:
        data = max(1, devices // (tensor * pipeline * context))
        cells.assumed.append(("data", f"{data}: the devices that are left"))
    zero = cells.value("zero_stage", "int")
    shard = shared.get("shard", data if zero else 1)
    if shard < 1 or data % shard:
        raise NotPredictable(f"data is {cells.text('data')!r}: shard {shard} does not divide {data}")
    schedule, order = split("schedule", cells.text("schedule"), SCHEDULE_OPTIONS)
    kind, again = split("recompute", cells.text("recompute"), RECOMPUTE_OPTIONS)
    return Layout(
        replicate=data // shard,
        shard=shard,
        zero=zero,
        tensor=tensor,
        sequence_parallel=cells.value("sequence_parallel", "bool"),
        pipeline=pipeline,
        schedule=schedule,
        virtual_stages=cells.value("virtual_stages", "int"),
        context=context,
        context_method=method.get("method", "ring"),
        expert=expert,
        expert_tensor=cut.get("tensor", 0),
        recompute=kind,
        recompute_every=again.get("every", 1),
        recompute_layers=again.get("layers", 0),
        recompute_modules=again.get("modules", ()),
        precision=cells.text("precision"),
        offload=cells.text("offload"),
        first_stage_layers=order.get("first", 0),
        last_stage_layers=order.get("last", 0),
        embedding_in_stages=order.get("ends", False),
    )


def _adapter(cells: Cells) -> Adapter | None:
    if not cells.text("adapter"):
        return None
    method, options = split("adapter", cells.text("adapter"), ADAPTER_OPTIONS)
    rank = cells.value("adapter_rank", "int")
    if rank is None:
        rank = Adapter().rank
        cells.assumed.append(("adapter_rank", f"{rank}: the cell is empty"))
    return Adapter(method, rank, **options)


def _stack(cells: Cells) -> Stack:
    name, options = split("stack", cells.text("stack"), HALVES)
    if name not in stacks():
        raise NotPredictable(
            f"stack {name!r} is not known{nearest(name, stacks())} (known: {', '.join(stacks())})"
        )
    compiled = cells.value("compile", "bool")
    if name == "torchtitan" and compiled:
        name = "torchtitan-compile"
    time = {k.removeprefix("time."): v for k, v in options.items() if k.startswith("time.")}
    memory = {k.removeprefix("memory."): v for k, v in options.items() if k.startswith("memory.")}
    if compiled is not None:
        memory["compile"] = compiled
    attention = cells.text("attention")
    if attention:
        kernel, kept = split("attention", attention, {"kept": "str"})
        if kernel not in KERNELS:
            raise NotPredictable(f"attention is {attention!r} (known: {', '.join(KERNELS)})")
        time["attention"] = kernel
        memory["attention"] = kept.get("kept") or kept_by(kernel, stack(name).implementation)
    return stack(name, memory, time)


def _megatron_count(cells: Cells) -> bool:
    counted = cells.text("flops_counted") or "model"
    if counted not in ("model", "megatron"):
        raise NotPredictable(f"flops_counted is {counted!r} (known: model, megatron)")
    return counted == "megatron"


def _quantities(cells: Cells) -> tuple[tuple[str, float], ...]:
    quantities: dict[str, float] = {}
    for name in TIMES:
        value = cells.value(name, "float")
        if value is not None:
            quantities[name] = value
    for name in MEMORIES:
        value = cells.value(f"{name}_GB", "float") if name != OUT_OF_MEMORY else None
        if value is not None:
            quantities[name] = value * 1e9
    if (failed := cells.value(OUT_OF_MEMORY, "bool")) is not None:
        quantities[OUT_OF_MEMORY] = float(failed)
    for name, value in quantities.items():
        if name != OUT_OF_MEMORY and value <= 0:
            raise NotPredictable(f"{name} is {value}: a measurement is above 0, an unknown one empty")
    if quantities.get("mfu", 0) > 1:
        raise NotPredictable(f"mfu is {quantities['mfu']}: give a share from 0 to 1, not per cent")
    return tuple(quantities.items())


def read_runs(path: Path) -> tuple[list[MeasuredRun], list[Skipped]]:
    """The runs of a file in canonical columns, and the rows that cannot be read, with the reason.

    Raises ValueError for a file that is no table in these columns.
    """
    records: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            check_columns(path, list(reader.fieldnames or []))
            for line, row in enumerate(reader, start=2):
                if None in row:
                    skipped.append(
                        Skipped(path.stem, line, "the row has more cells than the header has columns")
                    )
                    continue
                try:
                    record = record_of(row)
                except NotPredictable as reason:
                    skipped.append(Skipped(path.stem, line, str(reason)))
                    continue
                records.append(replace(record, row=line, table=record.table or path.stem))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name} is not a CSV file in UTF-8: {error}") from None
    return records, skipped


def check_columns(path: Path, names: list[str]) -> None:
    """Refuse unknown and doubled columns, and a file without any, with the nearest known one."""
    if not names:
        raise ValueError(
            f"{path.name} is empty: its first line names the columns ({', '.join(REQUIRED)} ...)"
        )
    for name in names:
        if name.removeprefix(ASSUMED) not in COLUMNS:
            raise ValueError(
                f"{path.name} has an unknown column {name!r}{nearest(name, COLUMNS)} "
                f"(known: {', '.join(COLUMNS)}, and {ASSUMED}COLUMN)"
            )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"{path.name} has the column {doubled[0]!r} twice")
    lacking = [name for name in REQUIRED if name not in names]
    if lacking:
        raise ValueError(f"{path.name} has no column {lacking[0]!r}: {COLUMNS[lacking[0]]}")
