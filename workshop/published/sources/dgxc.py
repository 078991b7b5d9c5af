"""DGX Cloud's benchmark recipes, as NVIDIA and Together AI measured them (github NVIDIA/dgxc-benchmarking and
togethercomputer/together-dgxc-benchmarking): Megatron-Bridge and NeMo on H100, B200, B300 and GB200.

What stands in the tables, decided before any of their rows was predicted:

- Means over steady steps of runs that were reported to have finished, of models whose architecture is known
  here. No hybrid of Mamba (Nemotron-H), none cut to a few layers ("proxy"), none under a profiler, none that
  differs from its neighbour by a variable of NCCL alone, and no fully sharded mixture of experts.
- A row whose device is not named, or whose batch its report leaves open or contradicts, is not in them. Nor
  is one whose seconds and TFLOP/s contradict each other: their product must count as many FLOPs for a token
  as other logs of the same model do (tests/published/test_dgxc.py holds all rows to half a percent).
- The launcher scales the global batch with devices; the name of an experiment keeps the smallest. The batch
  here is the one that the logs' seconds and TFLOP/s agree with.
- Most reports of Together's give TFLOP/s alone. `step_seconds_from_tflops` are the seconds that follow from
  them, by the median count of the logs with both.
- A run that failing parts held back, in the words of its own report (column `disturbed`), is kept in the
  table and not predicted. A fabric that is slower than its sheet says is no such case: it is that cluster's.

Columns that say what was recomputed, captured and dispatched are from the recipe in the column `recipe`, by
layout and release. Most of Together's runs of NeMo could not overlap tensor parallelism (`tp_overlap`): the
buffers for it want an MPI that their Slurm refused.

`sendrecv_GBps` is what sends from each rank to the next reached on so many nodes of the same cluster, by its
owners' own test of NCCL (github togethercomputer/together-dgxc-benchmarking
worklog/2026-04-27_nccl_rebaseline_report.md @ 661e8e1; a test of 10 April says the same within a tenth): on
16 nodes and more less than half of what all-gathers reach there.

Nemotron-4 15B ran with 256 words (`vocab_size`), not with its 256,000: the tables of its runs say so, and its
loss, 6.10 at first and 5.547 at last, is that of 256 words drawn at random (their logarithm is 5.545; the
tokenizer was Hugging Face's, which does not find the model's). NeMo counts FLOPs of 256,000 all the same.
Nemotron-4 340B's script takes no tokenizer of Hugging Face's.
"""

from __future__ import annotations

from dataclasses import replace

from workshop.facts.stack import Stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import choice, flag, number, plain, text, unused, whole
from workshop.published.names import named_model
from workshop.published.record import SECONDS, MeasuredRun, Row, Source
from workshop.published.sources.nvidia import (
    NO_BUFFERS,
    USUAL,
    layout_of,
    run_of,
    stated_format,
    stated_stack,
    with_prediction_block,
)

FRAMEWORKS = {"megatron-bridge": "megatron-bridge", "nemo": "nemo"}
OF_NEMO = (("recompute", "none where the recipe does not name it"),)
SCALED = (("global_batch_sequences", "as the launcher scales it with devices, where the report names none"),)


def used_stack(row: Row, moe: bool) -> Stack:
    """What the recipe says of the stack, and whether tensor parallelism could hide."""
    used = stated_stack(row, moe, choice(row, "framework", FRAMEWORKS))
    software = replace(used.software, passes_rate=number(row, "sendrecv_GBps", 0.0) * 1e9)
    if not flag(row, "tp_overlap"):
        software = replace(software, **NO_BUFFERS)
    return used._replace(software=software)


def measured_run(row: Row) -> MeasuredRun:
    """One configuration of either repository."""
    if held_back := text(row, "disturbed"):
        raise NotPredictable(f"the run was disturbed: {held_back}")
    word, precision = stated_format(row)
    name = text(row, "model")
    shape, predicts = with_prediction_block(name, named_model(name, whole(row, "seq_len_tokens")))
    shape = shape.resized(vocab_size=whole(row, "vocab_size", shape.vocab_size))
    used = used_stack(row, shape.is_moe)
    run = run_of(row, shape, layout_of(row, shape, precision), used)
    of_nemo = OF_NEMO if text(row, "framework") == "nemo" else ()
    columns = ("release", "cluster", "date", "job", "note")
    return MeasuredRun(
        f"{name} on {run.layout.world_size}",
        f"{run.cluster.device.name} {name} {word}",
        run,
        used.software,
        assumed=(*USUAL, *of_nemo, *SCALED, *predicts),
        note="; ".join(filter(None, (text(row, column) for column in columns))),
    )


SOURCE = Source(
    ("dgxc_benchmarking", "dgxc_benchmarking_bridge", "together_dgxc_benchmarking"),
    measured_run,
    {
        "step_seconds": plain(SECONDS),
        "step_seconds_from_tflops": plain(SECONDS),
        "tokens_per_s": unused,
        "mfu_percent": unused,
        "model_tflops_per_gpu": unused,
    },
)
