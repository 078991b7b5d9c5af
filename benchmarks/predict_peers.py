"""What other tools say about the same rows; run by `predict.py` in an environment of its own.

Reads JSON from standard input: {"time": [...], "memory": [...]}, writes for each tool the predictions in the
same order, null where it cannot say, and seconds per call. Every tool gets what it asks for, in its own
units.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def llm_analysis(rows: list[Row], efficiency: float) -> list[float | None]:
    """llm-analysis (github.com/cli99/llm-analysis): seconds of a step. It has no bubble and no schedule."""
    answers: list[float | None] = []
    for row in rows:
        try:
            answers.append(ask_llm_analysis(row, efficiency))
        except (AssertionError, ValueError, ZeroDivisionError, KeyError):
            answers.append(None)  # the tool refuses the row
    return answers


def ask_llm_analysis(row: Row, efficiency: float) -> float:
    """One row."""
    from llm_analysis import analysis, config

    logging.disable(logging.CRITICAL)
    shape = (row["layers"], row["heads"], row["hidden"], row["vocab"])
    model = config.ModelConfig(
        "row",
        *shape,
        max_seq_len=row["seq_len"],
        num_key_value_heads=row["kv_heads"],
        ffn_embed_dim=row["ffn"],
        expansion_ratio=row["ffn"] / row["hidden"],
    )
    rates = (row["memory_gb"], row["memory_gb_s"], row["link_gb_s"], 8e-6, row["peak_tflops"])
    gpu = config.GPUConfig("gpu", *rates, inter_node_bandwidth_in_GB_per_sec=row["network_gb_s"])
    sequence = row["tensor"] if row["sequence_parallel"] else 1
    cut = config.ParallelismConfig(row["tensor"], row["pipeline"], row["data"], sp_size=sequence)
    tool = analysis.LLMAnalysis(model, gpu, config.DtypeConfig(), cut, flops_efficiency=efficiency)
    answer = tool.training(
        batch_size_per_gpu=row["micro_batch"],
        gradient_accumulation_steps=row["accumulation"],
        seq_len=row["seq_len"],
        activation_recomputation=analysis.ActivationRecomputation(row["recompute"]),
        ds_zero=analysis.DSZeRO(row["zero"]),
        flash_attn=row["flash"],
        mlp_gated_linear_units=row["gated"],
    )
    return float(answer["latency_per_iter"])


def deepspeed_states(rows: list[Row]) -> list[float | None]:
    """DeepSpeed's `estimate_zero*_model_states_mem_needs`: bytes of weights, gradients and optimizer on a
    device.
    """
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    answers: list[float | None] = []
    for row in rows:
        params, nodes = row["params"], max(1, row["data"] // 8)
        per_node = min(8, row["data"])
        if row["zero"] == 3:
            answer = estimate_zero3_model_states_mem_needs(
                params, row["largest"], per_node, nodes, False, False, 1.0
            )[1]
        else:
            answer = estimate_zero2_model_states_mem_needs(params, per_node, nodes, False, 1.0)[1]
        answers.append(float(answer))
    return answers


def accelerate_training(rows: list[Row]) -> list[float | None]:
    """`accelerate estimate-memory`: the largest of its "training" columns for Adam; it knows no sharding."""
    from accelerate.commands.estimate import estimate_training_usage

    answers: list[float | None] = []
    for row in rows:
        answer = estimate_training_usage(4 * row["params"], mixed_precision="float16")
        answers.append(float(max(v for v in answer.values() if v != -1)))
    return answers


def timed(call: Callable[[], list[float | None]], count: int) -> dict[str, Any]:
    """The answers, and milliseconds for each."""
    try:
        start = time.perf_counter()
        answers = call()
        return {"answers": answers, "ms": (time.perf_counter() - start) / max(count, 1) * 1e3}
    except ImportError as missing:
        return {"missing": str(missing)}


def main() -> None:
    """Answer on standard output."""
    ask = json.load(sys.stdin)
    rows, memory = ask["time"], ask["memory"]
    answer = {
        f"llm-analysis at {share:.2f}": timed(lambda s=share: llm_analysis(rows, s), len(rows))
        for share in ask["efficiencies"]
    }
    answer["deepspeed"] = timed(lambda: deepspeed_states(memory), len(memory))
    answer["accelerate"] = timed(lambda: accelerate_training(memory), len(memory))
    print("ANSWER" + json.dumps(answer))


if __name__ == "__main__":
    main()
