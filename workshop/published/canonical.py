"""Measured runs in the canonical columns, as CSV; `canonical_reader` reads them back as the same runs.

    workshop validate --canonical data/published/canonical.csv     # all open tables, in these columns
    workshop validate --runs mine.csv                              # your own

`columns` says what each column means. Reading a row that was written gives the same predictions as the
source's own reader (tests/published/test_canonical.py).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from workshop.facts import catalogue
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import Implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Adapter
from workshop.facts.stack import Software, Stack, stack, stacks
from workshop.published.columns import ASSUMED, COLUMNS
from workshop.published.options import changes, joined, kinds_of, written
from workshop.published.record import HARDWARE, MEMORIES, OUT_OF_MEMORY, TIMES, MeasuredRun

SHAPE = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_heads",
    "kv_heads": "num_kv_heads",
    "ffn_hidden_size": "ffn_hidden_size",
    "vocab_size": "vocab_size",
    "gated_mlp": "gated_mlp",
    "tied_embeddings": "tied_embeddings",
    "num_experts": "num_experts",
    "experts_per_token": "experts_per_token",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
}
"""Columns that are fields of the shape."""
MODEL_OPTIONS = kinds_of(ModelSpec, ("name", "source", *SHAPE.values()))
MODEL_KINDS = kinds_of(ModelSpec, ())
HALVES = {
    **{f"time.{k}": v for k, v in kinds_of(Software, ("name", "source", "attention")).items()},
    **{
        f"memory.{k}": v
        for k, v in kinds_of(Implementation, ("name", "source", "attention", "compile")).items()
    },
}
ADAPTER_OPTIONS = kinds_of(Adapter, ("method", "rank"))
SCHEDULE_OPTIONS = {"group": "int", "first": "int", "last": "int", "ends": "bool"}
RECOMPUTE_OPTIONS = {"modules": "tuple[str, ...]", "every": "int", "layers": "int"}
KERNELS = ("flash-1", "flash-triton", "flash-2", "flash-3", "unfused")

# ---------------------------------------------------------------------------------------------------- writing


def row_of(record: MeasuredRun) -> dict[str, str]:
    """A record in the canonical columns; columns that do not apply are empty."""
    run = record.run
    lengths = {"target": run.target_len, "document": run.document_len}
    values: dict[str, Any] = {
        "name": record.name,
        **_model_cells(run.model),
        "seq_len": joined(str(run.seq_len), {k: v for k, v in lengths.items() if v}),
        "global_batch_sequences": run.global_batch,
        "micro_batch_sequences": run.micro_batch,
        **_cluster_cells(run.cluster),
        **_layout_cells(run.layout, record.pass_group),
        "optimizer": run.optimizer,
        **_adapter_cells(run.adapter),
        **_stack_cells(Stack(record.software, run.implementation)),
        **_measured_cells(record),
        "source": record.source,
        "note": record.note,
        "table": record.table,
        "line": record.row,
        "group": record.group,
    }
    cells = {name: "" if value is None else written(value) for name, value in values.items()}
    for column, words in record.assumed:
        key = ASSUMED + column
        cells[key] = f"{cells[key]}; {words}" if key in cells else words
    return cells


def _model_cells(model: ModelSpec) -> dict[str, Any]:
    known = catalogue.models().get(model.name)
    base = known or ModelSpec("", model.num_layers, model.hidden_size, model.num_heads, model.vocab_size)
    options = changes(model, base, MODEL_OPTIONS)
    shared, each = model.shared_ffn_hidden_size, model.moe_ffn_hidden_size
    count = shared // each if each and shared % each == 0 else 0
    if count:
        options.pop("shared_ffn_hidden_size", None)
    cells = {column: getattr(model, name) for column, name in SHAPE.items()}
    if not model.is_moe:
        cells |= dict.fromkeys(("num_experts", "experts_per_token", "moe_ffn_hidden_size"))
    return {"model": joined(model.name.replace(" ", "-"), options), **cells, "shared_experts": count or None}


def _cluster_cells(cluster: ClusterSpec) -> dict[str, Any]:
    between = cluster.inter.bytes_per_second * 8 / 1e9 if cluster.inter else None
    return {
        "device": cluster.device.name,
        "num_devices": cluster.num_devices,
        "devices_per_node": cluster.devices_per_node,
        "network_gbps_per_device": between,
    }


def _layout_cells(layout: Layout, group: int) -> dict[str, Any]:
    order = {
        "group": group,
        "first": layout.first_stage_layers,
        "last": layout.last_stage_layers,
        "ends": layout.embedding_in_stages,
    }
    again = {
        "modules": layout.recompute_modules,
        "every": layout.recompute_every if layout.recompute_every > 1 else 0,
        "layers": layout.recompute_layers,
    }
    usual = layout.shard == (layout.data_parallel if layout.zero else 1)
    cut = layout.expert_tensor != layout.tensor
    passed_on = layout.context == 1 or layout.context_method == "ring"
    return {
        "tensor": layout.tensor,
        "sequence_parallel": layout.sequence_parallel,
        "pipeline": layout.pipeline,
        "virtual_stages": layout.virtual_stages,
        "schedule": joined(layout.schedule, {k: v for k, v in order.items() if v}),
        "context": joined(str(layout.context), {} if passed_on else {"method": layout.context_method}),
        "expert": joined(str(layout.expert), {"tensor": layout.expert_tensor} if cut else {}),
        "data": joined(str(layout.data_parallel), {} if usual else {"shard": layout.shard}),
        "zero_stage": layout.zero,
        "precision": layout.precision,
        "recompute": joined(layout.recompute, {k: v for k, v in again.items() if v}),
        "offload": layout.offload,
    }


def _adapter_cells(adapter: Adapter | None) -> dict[str, Any]:
    if adapter is None:
        return {}
    options = changes(adapter, Adapter(), ADAPTER_OPTIONS)
    return {"adapter": joined(adapter.method, options), "adapter_rank": adapter.rank}


def _stack_cells(used: Stack) -> dict[str, Any]:
    pair = (used.software.name, used.implementation.name)
    name = next(
        known for known, both in stacks().items() if (both.software.name, both.implementation.name) == pair
    )
    base = stack(name)
    options = {
        f"{half}.{field}": value
        for half, own, other in (
            ("time", used.software, base.software),
            ("memory", used.implementation, base.implementation),
        )
        for field, value in changes(
            own, other, {k.split(".")[1]: "" for k in HALVES if k.startswith(half)}
        ).items()
    }
    kernel, kept = used.software.attention, used.implementation.attention
    attention = joined(kernel, {} if kept == kept_by(kernel, base.implementation) else {"kept": kept})
    return {"attention": attention, "compile": used.implementation.compile, "stack": joined(name, options)}


def kept_by(kernel: str, own: Implementation) -> str:
    """What backward keeps of attention where nothing is said: what the stack does, if it can."""
    if kernel == "unfused":
        return "unfused"
    return own.attention if own.attention != "unfused" else "flash"


def _measured_cells(record: MeasuredRun) -> dict[str, Any]:
    measured = record.measured
    cells: dict[str, Any] = {name: measured[name] for name in TIMES if name in measured}
    for name in MEMORIES:
        if name in measured and name != OUT_OF_MEMORY:
            cells[f"{name}_GB"] = measured[name] / 1e9
    if OUT_OF_MEMORY in measured:
        cells[OUT_OF_MEMORY] = bool(measured[OUT_OF_MEMORY])
    if HARDWARE in measured or record.megatron_count:
        cells["flops_counted"] = "megatron" if record.megatron_count else "model"
    return {**cells, "memory_stage": record.stage}


def as_csv(records: Iterable[MeasuredRun]) -> str:
    """Records as CSV text: all canonical columns, and an assumed_ one for each that a row fills."""
    rows = [row_of(record) for record in records]
    used = {name for row in rows for name, cell in row.items() if cell}
    assumed = [ASSUMED + name for name in COLUMNS if ASSUMED + name in used]
    file = io.StringIO()
    writer = csv.DictWriter(file, [*COLUMNS, *assumed], lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
