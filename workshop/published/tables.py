"""The published tables, who reads them, and why some are not read.

A table is found by its file's name; from there on only its columns count. `describe` of a source never sees
the columns that were measured.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from workshop.predict.case import NotPredictable
from workshop.published.record import TIMES, MeasuredRun, Row, Skipped, Source
from workshop.published.serving import SOURCES as SERVED
from workshop.published.sources import (
    bloom,
    dgxc,
    fms,
    internevo,
    litgpt,
    llama3,
    mbridge,
    megatron_ci,
    megatron_core,
    megatron_papers,
    mosaicml,
    nanotron,
    nvidia,
    torchtitan,
    torchtune,
    vtrain,
)

SOURCES: tuple[Source, ...] = (
    vtrain.SOURCE,
    mosaicml.SOURCE,
    *megatron_papers.SOURCES,
    bloom.SOURCE,
    *internevo.SOURCES,
    megatron_core.SOURCE,
    *nvidia.SOURCES,
    dgxc.SOURCE,
    torchtitan.SOURCE,
    fms.SOURCE,
    nanotron.SOURCE,
    llama3.SOURCE,
    megatron_ci.SOURCE,
    torchtune.SOURCE,
    litgpt.SOURCE,
    mbridge.SOURCE,
)
READERS: dict[str, Source] = {table: source for source in SOURCES for table in source.tables}

NOT_READ: dict[str, str] = {
    "allreduce_busbw_by_payload": "a curve for the lesson on collectives; links are fitted on vTrain's table",
    "bigscience_gpt2_v100_sweep": "the width and depth of its models are not in the row, only their size",
    "blind_rows": "no constant may see them: `workshop validate --runs data/published/blind_rows.csv`",
    "finetune_framework_comparisons": "ratios between frameworks, not times",
    "fp8_against_16bit": "losses and scores, not times",
    "korthikanti_2022_mfu_hfu": "looks computed, not measured",
    "llama1_opt_bloom_gpu_hours": "layouts are not given",
    "llamafactory_unsloth_tgs": "model, batch and device are not given",
    "maxtext_tpu": "no constants are known for TPUs",
    "megatron_jan2021_a100": "tensor- and pipeline-parallel degree and micro-batch are not given",
    "misc_readme_figures": "single claims in words",
    "pipeline_schedule_formulas": "formulas, not measurements",
    "sailor_validation_gh200_titan_memory_time": "mixed devices in one job; the model is not in the row",
    **dict.fromkeys((f"serving_{source}" for source in SERVED), "servers: `workshop validate --serving`"),
    "unsloth_max_context_qlora": "the row holds a largest context, not the memory of a run",
    "unsloth_vs_hf_finetune": "sequences of unequal length; batch and precision are not in the row",
    "vtrain_allreduce_lut": "times of all-reduces alone, which the links are fitted on",
}


def read_row(source: Source, row: Row) -> MeasuredRun:
    """One row as a run with what was measured. Raises NotPredictable with the reason."""
    try:
        described = source.describe({k: v for k, v in row.items() if k not in source.measured})
    except ValueError as reason:
        raise NotPredictable(str(reason)) from None
    quantities: dict[str, float] = {}
    for column, measure in source.measured.items():
        cell = (row.get(column) or "").strip()
        if cell:
            quantities |= measure(cell)
    return replace(described, quantities=tuple(quantities.items()))


def read_table(path: Path) -> tuple[list[MeasuredRun], list[Skipped]]:
    """All rows of a table that its source's reader understands, and the others with the reason.

    Rows are numbered as lines of the file, whose header is line 1. A row may be read and yet appear among the
    skipped, with the kind ("time", "memory") that it says nothing about.
    """
    records: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    table = path.stem
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            if table not in READERS:
                skipped.append(Skipped(table, line, NOT_READ[table]))
                continue
            try:
                record = read_row(READERS[table], row)
            except NotPredictable as reason:
                skipped.append(Skipped(table, line, str(reason)))
                continue
            skipped += missing(READERS[table], record, table, line)
            if record.quantities:
                records.append(replace(record, table=table, row=line, source=row.get("source") or ""))
    return records, skipped


def missing(source: Source, record: MeasuredRun, table: str, line: int) -> list[Skipped]:
    """What the source measures for other rows and not for this one, or what is not read at all."""
    skipped = [Skipped(table, line, source.time_unread, "time")] if source.time_unread else []
    if not record.quantities:
        columns = ", ".join(name for name in source.measured)
        return [Skipped(table, line, f"nothing was measured: {columns}")]
    measured = {"time" if name in TIMES else "memory" for name, _ in record.quantities}
    skipped += [
        Skipped(table, line, f"no {kind} was measured", kind) for kind in source.kinds if kind not in measured
    ]
    return skipped


def read_folder(folder: Path) -> tuple[list[MeasuredRun], list[Skipped]]:
    """Every known table of a folder.

    Raises ValueError when there is no such folder, or no table in it that is known here.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; name one with --tables")
    known = [path for path in sorted(folder.glob("*.csv")) if path.stem in READERS or path.stem in NOT_READ]
    if not known:
        raise ValueError(f"no known table in {folder}; tables are named as in data/published")
    records: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    for path in known:
        read, left = read_table(path)
        records += read
        skipped += left
    return records, skipped
