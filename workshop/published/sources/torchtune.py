"""torchtune's tables of memory: "peak active" GiB are **allocated** bytes (github pytorch/torchtune,
README.md).

A row "+ X" has all options named above it too; LoRA and QLoRA have all but the optimizer's step in
backward. Recipes keep everything in bf16. The table of models runs the default recipes, packed and
compiled; the single-device recipe of the full finetune pages an 8-bit optimizer to the host
(recipes/configs/llama3_1/8B_full_single_device.yaml).
"""

from __future__ import annotations

from workshop.facts.device import split_count
from workshop.facts.layout import Layout
from workshop.facts.nf4 import nf4_bits
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import Stack, stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import memory, text, unused, whole
from workshop.published.names import named_device, named_model
from workshop.published.record import ALLOCATED, MeasuredRun, Row, Source

STEPS = (
    "packed dataset",
    "compile",
    "chunked cross entropy",
    "activation checkpointing",
    "fuse optimizer step into backward",
    "activation offloading",
    "8-bit adamw",
)
FUSED_STEP = STEPS[4]
METHODS = ("full finetune", "lora", "qlora", "baseline")


def options_of(method: str, settings: str) -> set[str]:
    """The options in force for a row."""
    if "packed" in settings:  # the table of models: the default recipes, packed and compiled
        options = set(STEPS[:4])
        return options if "lora" in method else options | {FUSED_STEP}
    if "lora" in method:
        return set(STEPS) - {FUSED_STEP}
    step = method.removeprefix("+").strip()
    if step not in (*STEPS, *METHODS):
        raise NotPredictable(f"method is {method!r} (known: {', '.join((*METHODS, *STEPS))})")
    return set(STEPS[: STEPS.index(step) + 1]) if step in STEPS else set()


def offload_of(options: set[str], settings: str, *, paged: bool) -> str:
    """What the recipe keeps on the host."""
    if "offload" in settings and "activation" not in settings:
        return "params"
    if "activation offloading" in options:
        return "activations"
    return "optimizer" if paged else "none"


def used_stack(options: set[str]) -> Stack:
    """torchtune with a row's options."""
    return stack(
        "torchtune",
        memory={
            "compile": "compile" in options,
            "optimizer_in_backward": FUSED_STEP in options,
            "loss": "chunked" if "chunked cross entropy" in options else "eager",
            "loss_chunks": 8,
        },
    )


def describe(row: Row) -> MeasuredRun:
    """bf16 throughout; one device, or FSDP2 over those of a node."""
    method, settings = text(row, "method").lower(), text(row, "settings").lower()
    options = options_of(method, settings)
    if "packed dataset" not in options:
        raise NotPredictable("the dataset is not packed, so the tokens of a batch are unknown")
    devices, name = split_count(text(row, "hardware"))
    adapter = None
    if "lora" in method:
        bits = nf4_bits(double=True) if method.startswith("q") else 16
        adapter = Adapter("lora", 8, ("q", "v", "attention_out"), bits)
    if devices > 1:
        options.discard(FUSED_STEP)
    used = used_stack(options)
    paged = "packed" in settings and adapter is None and devices == 1
    layout = Layout(
        shard=devices,
        zero=3 if devices > 1 else 0,
        precision="bf16",
        recompute="full" if "activation checkpointing" in options else "none",
        offload=offload_of(options, settings, paged=paged),
    )
    run = Run(
        named_model(text(row, "model")),
        f"{devices}x{named_device(name, 80 if name == 'A100' else 0)}",
        layout,
        whole(row, "batch_size_seqs"),
        whole(row, "max_seq_len_tokens"),
        adapter=adapter,
        implementation=used.implementation,
        optimizer="adamw-8bit" if "8-bit adamw" in options else "adamw",
    )
    return MeasuredRun(
        f"{text(row, 'model')}: {text(row, 'method')}",
        text(row, "table")[:20],
        run,
        used.software,
        assumed=_assumed(name, adapter, paged=paged),
    )


def _assumed(device: str, adapter: Adapter | None, *, paged: bool) -> tuple[tuple[str, str], ...]:
    assumed = [("precision", "bf16: the recipes' default")]
    if device == "A100":
        assumed.append(("device", "A100 with 80 GB: the source says A100"))
    if adapter:
        assumed.append(("adapter_rank", "8, on q, v and the output of attention: the recipes' default"))
    if paged:
        assumed.append(("offload", "optimizer: the single-device recipe pages it to the host"))
    return tuple(assumed)


def _shown(cell: str) -> dict[str, float]:
    return memory(ALLOCATED)(cell.split("(")[0])


SOURCE = Source(
    ("torchtune_memory_speed",),
    describe,
    {"peak_memory_per_gpu_text": _shown, "tokens_per_s": unused},
    time_unread="the time model has no constants for torchtune",
)
