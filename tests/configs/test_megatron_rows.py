"""Megatron-LM's own tests, 431 recorded runs: their arguments as a command line give the run that the table's reader makes.

Two translations of the same arguments stand in the package: of a row of the published table, whose memory is
predicted to some per cent, and of a command line. They must not drift apart.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from workshop.configs import Overrides, read_config
from workshop.facts.published import published_table
from workshop.predict.case import NotPredictable
from workshop.published.sources.megatron_ci import describe, device_of

COLUMNS = {
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "ffn_hidden_size": "--ffn-hidden-size",
    "attention_heads": "--num-attention-heads",
    "kv_groups": "--group-query-attention --num-query-groups",
    "seq_len_tokens": "--seq-length",
    "vocab_size": "--vocab-size",
    "micro_batch_size_seqs": "--micro-batch-size",
    "global_batch_size_seqs": "--global-batch-size",
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "layers_per_virtual_stage": "--num-layers-per-virtual-pipeline-stage",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "num_experts": "--num-experts",
    "moe_topk": "--moe-router-topk",
    "moe_ffn_hidden_size": "--moe-ffn-hidden-size",
    "dp_sharding": "--use-megatron-fsdp --data-parallel-sharding-strategy",
    "recompute_granularity": "--recompute-granularity",
    "recompute_method": "--recompute-method",
    "recompute_num_layers": "--recompute-num-layers",
    "recompute_modules": "--recompute-modules",
    "fp8_format": "--fp8-format",
    "transformer_impl": "--transformer-impl",
    "attention_backend": "--attention-backend",
}
SWITCHES = {
    "swiglu": "--swiglu",
    "untie_embeddings": "--untie-embeddings-and-output-weights",
    "sequence_parallel": "--sequence-parallel",
    "distributed_optimizer": "--use-distributed-optimizer",
    "optimizer_cpu_offload": "--optimizer-cpu-offload",
    "bf16": "--bf16",
}
OF_THE_RECORDING = ("account_for_embedding_loss",)
"""What the table's reader knows from names, and no argument says."""

ROWS = published_table("megatron_lm_ci_golden_memory_time")


def command_line(row: dict[str, str]) -> str:
    """The row as somebody would start it."""
    script = {"bert": "pretrain_bert.py", "t5": "pretrain_t5.py"}.get(row["family"], "pretrain_gpt.py")
    words = [f"torchrun --nproc-per-node {row['gpus_from_recipe'] or 8} --nnodes 1 {script}"]
    words += [f"{flag} {row[column]}" for column, flag in COLUMNS.items() if row[column]]
    words += [flag for column, flag in SWITCHES.items() if row[column] in ("1", "True", "true")]
    for name, value in json.loads(row["other_args_json"] or "{}").items():
        words.append(name if value is True else f"{name} '{value}'")
    return " \\\n    ".join(words)


def comparable(row: dict[str, str]):
    """The table's run, or None where it has none, or where it knows more than the arguments."""
    if any(word in row["platform_file"] or word in row["test_case"] for word in OF_THE_RECORDING):
        return None
    if row["fp16"] and not row["fp8_format"]:  # read as bf16's bytes there
        return None
    try:
        return describe(row).run
    except (NotPredictable, ValueError):
        return None


def test_a_command_line_gives_the_tables_run():
    compared = 0
    for row in ROWS:
        run = comparable(row)
        if run is None:
            continue
        found = read_config(command_line(row), Overrides(device=device_of(row)))
        assert found.not_modelled == (), (row["test_case"], found.not_modelled)
        mine = found.run
        assert mine is not None, found.lacking
        rows = mine.model.max_positions if mine.model.positions == "learned" else run.model.max_positions
        named = replace(mine, model=mine.model.resized(name=run.model.name, max_positions=rows))
        assert named == run, row["test_case"]
        compared += 1
    assert compared > 300


@pytest.mark.parametrize("word", ["--perform-rl-step", "--export-kd-cfg"])
def test_what_is_no_plain_training_is_refused_there_and_here(word):
    rows = [row for row in ROWS if word in row["other_args_json"]]
    assert rows
    for row in rows:
        with pytest.raises(NotPredictable):
            describe(row)
        assert any(word in reason for reason in read_config(command_line(row)).not_modelled)
