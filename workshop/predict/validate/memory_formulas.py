"""Memory that a paper computed, and tables whose rows leave out what memory depends on.

``korthikanti_2022_seqpar_selective.csv`` quotes arXiv 2205.05198, figure 1: GiB of states and of saved
activations on the first stage, for 22B and 175B with tensor parallelism of 8, with and without sequence
parallelism and selective recomputation.  They follow from the paper's equations, so they test the count and
not a machine.
"""

from __future__ import annotations

from collections.abc import Callable

from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.validate.memory_cases import GIB, MemoryCase, NotPredictable, Row, count, text

MODELS = {"megatron-22B": "megatron-22b", "gpt3-175B": "megatron-175b"}
SAYS_TOO_LITTLE = {
    "sailor_validation_gh200_titan_memory_time": "the model's shape and its precision are not in the row",
    "unsloth_vs_hf_finetune": "sequence lengths and the model's precision are not in the row",
    "llamafactory_unsloth_tgs": "the model and its sequence length are not in the row",
    "unsloth_max_context_qlora": "the row holds a largest context, not the memory of a run",
    "bigscience_gpt2_v100_sweep": "the model's width and depth are not in the row",
}


def korthikanti(row: Row, number: int) -> MemoryCase:
    """Saved activations of the first stage."""
    if not text(row, "activations_GiB"):
        raise NotPredictable("activations_GiB is not given")
    model = catalogue.model(MODELS.get(text(row, "model"), text(row, "model")))
    mode = text(row, "mode")
    layout = Layout(
        replicate=count(row, "dp"),
        tensor=count(row, "tp"),
        sequence_parallel="seq" in mode,
        pipeline=count(row, "pp"),
        virtual_stages=count(row, "pp_interleave_stages") if count(row, "pp") > 1 else 1,
        recompute="full" if mode == "full" else "selective" if "sel" in mode else "none",
        precision="megatron-fp16",
    )
    run = Run(
        model,
        f"{layout.world_size}xA100-80GB",
        layout,
        count(row, "micro_batch_size_seqs"),
        count(row, "seq_len_tokens"),
        global_batch=count(row, "global_batch_size_seqs"),
        implementation=implementation("megatron", attention="unfused"),
    )
    measured = float(text(row, "activations_GiB")) * GIB
    table = "korthikanti_2022_seqpar_selective"
    return MemoryCase(table, text(row, "model"), number, mode, "activations", measured, run, 0)


def refuse(reason: str) -> Callable[[Row, int], MemoryCase]:
    """A reader for a table whose rows cannot be predicted."""

    def reader(row: Row, number: int) -> MemoryCase:  # noqa: ARG001
        raise NotPredictable(reason)

    return reader
