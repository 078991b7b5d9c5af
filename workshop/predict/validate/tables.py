"""The published tables and who reads them.

A reader takes one row (column name -> text) and returns a `Case`, or raises `CannotPredict` with the reason.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from workshop.predict.validate import tables_a100 as a100
from workshop.predict.validate import tables_fsdp as fsdp
from workshop.predict.validate import tables_h100 as h100
from workshop.predict.validate import tables_nvidia as nvidia
from workshop.predict.validate.cases import Case, Skipped
from workshop.predict.validate.rows import CannotPredict, Row

READERS: dict[str, Callable[[Row, str, int], Case]] = {
    "vtrain_ground_truth_multinode_a100": a100.vtrain,
    "vtrain_ground_truth_singlenode_a100": a100.vtrain,
    "mosaicml_llm_foundry_throughput": fsdp.mosaic,
    "megatron_sc21_table1_a100": a100.sc21,
    "megatron_sc21_table2_zero3_vs_ptd_a100": a100.sc21_zero3,
    "bloom_176b_layout_sweep_a100": a100.bloom,
    "korthikanti_2022_seqpar_selective": a100.korthikanti,
    "megatron_2020_tp_scaling": a100.megatron_2020,
    "internevo_7b_scaling_a100": fsdp.internevo,
    "megatron_core_h100_weak_scaling": h100.megatron_core,
    "nvidia_megatron_bridge_performance": nvidia.bridge,
    "nvidia_nemo_2407_h100_fp8": nvidia.nemo,
    "nvidia_nemo_long_sequence_cp": nvidia.nemo_long,
    "torchtitan_performance": h100.torchtitan,
    "ibm_fms_fsdp_llama2": h100.fms,
    "nanotron_ultrascale_best_configs_h100": h100.nanotron,
    "llama3_405b_layouts": h100.llama3,
}

NOT_READ: dict[str, str] = {
    "allreduce_busbw_by_payload": "a curve for the lesson on collectives; links are fitted on vTrain's table",
    "bigscience_gpt2_v100_sweep": "the shapes of its models are not given, only their size to two digits",
    "finetune_framework_comparisons": "ratios between frameworks, not times",
    "korthikanti_2022_mfu_hfu": "looks computed, not measured",
    "litgpt_resource_tables_a100_40gb": "sequences of unequal length, padded to the longest of each batch",
    "llama1_opt_bloom_gpu_hours": "layouts are not given",
    "llamafactory_unsloth_tgs": "model, batch and device are not given",
    "maxtext_tpu": "no constants are known for TPUs",
    "megatron_jan2021_a100": "tensor- and pipeline-parallel degree and micro-batch are not given",
    "megatron_lm_ci_golden_memory_time": "deterministic test mode with mock data: not the times of training",
    "misc_readme_figures": "single claims in words",
    "sailor_validation_gh200_titan_memory_time": "mixed devices in one job; their links are not given",
    "torchtune_memory_speed": "sequences of unequal length, padded to the longest of each batch",
    "unsloth_vs_hf_finetune": "sequences of unequal length; the batch is not given",
}


def read_table(path: Path) -> tuple[list[Case], list[Skipped]]:
    """All rows of a table file that its reader understands, and the others with the reason."""
    reader = READERS[path.stem]
    cases: list[Case] = []
    skipped: list[Skipped] = []
    with path.open(newline="", encoding="utf-8") as file:
        for index, row in enumerate(csv.DictReader(file)):
            try:
                cases.append(reader(row, path.stem, index))
            except KeyError as reason:
                skipped.append(Skipped(path.stem, index, f"unknown value or column {reason}"))
            except (CannotPredict, ValueError) as reason:
                skipped.append(Skipped(path.stem, index, str(reason)))
            except (AttributeError, IndexError, ZeroDivisionError) as reason:
                # A cell is missing or malformed where the source never has one so.
                skipped.append(Skipped(path.stem, index, f"a cell cannot be read ({reason})"))
    return cases, skipped
