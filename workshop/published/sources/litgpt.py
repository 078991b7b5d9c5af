"""litgpt's resource tables: ``torch.cuda.max_memory_allocated`` in GB of 10**9 bytes, ``bf16-true`` (github
Lightning-AI/litgpt, tutorials/resource-tables.md).

The script's batch is as long as the longest sample of Alpaca: 1,304 tokens with Llama's tokenizer, 1,037
with the others'. These two lengths are not in the table and are assumed. Several devices share everything
(FSDP), and recompute every block, as the script does.
"""

from __future__ import annotations

from dataclasses import replace

from workshop.facts.device import split_count
from workshop.facts.layout import Layout
from workshop.facts.nf4 import nf4_bits
from workshop.facts.run import Adapter, Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import choice, memory, text, unused, whole
from workshop.published.names import named_device, named_model
from workshop.published.record import ALLOCATED, MeasuredRun, Row, Source

BITS = {"": 16.0, "none": 16.0, "bnb.nf4": nf4_bits(double=False), "bnb.nf4-dq": nf4_bits(double=True)}
ALPACA_LLAMA, ALPACA_OTHER = 1304, 1037
GPUS = {"A100": 40}  # the source's A100 are of 40 GB


def described_model(row: Row) -> str:
    """The catalogue's name, from family and size, which some families have only one of."""
    family, size = text(row, "model"), text(row, "size").replace(" ", "").lower()
    try:
        return named_model(f"{family}-{size}").name
    except NotPredictable:
        return named_model(family).name


def adapter_of(section: str, bits: float, trainable: int) -> Adapter:
    """LoRA of rank 8 on queries and values, LLaMA-Adapter, or its second version on every linear map."""
    if "LoRA" in section:
        return Adapter("lora", 8, ("q", "v"), bits, trainable)
    if "Adapter v2" in section:
        return Adapter("adapter-v2", 8, ("all",), bits, trainable)
    if "Adapter" in section:
        return Adapter("adapter", 8, ("q",), bits, trainable)
    raise NotPredictable(f"section is {section!r} (known: LoRA, Adapter, Adapter v2, Inference)")


def inference(name: str, cluster: str, bits: float) -> MeasuredRun:
    """Weights only: generation keeps no gradients, and its cache is small beside them."""
    used = stack("litgpt", memory={"loss": "fused", "step_room": 0.0})
    run = Run(
        name,
        cluster,
        Layout(precision="bf16", recompute="full"),
        1,
        1,
        adapter=Adapter("adapter", 1, ("q",), bits, 1),
        optimizer="none",
        implementation=used.implementation,
    )
    assumed = (
        ("seq_len", "1: a generation's cache is small beside the weights, its length not in the table"),
    )
    return MeasuredRun(name, "", run, used.software, assumed=assumed)


def finetuning(row: Row, name: str, devices: int, bits: float) -> MeasuredRun:
    """Adapters on frozen weights in bf16 or NF4."""
    tokens = ALPACA_LLAMA if "llama" in text(row, "model").lower() else ALPACA_OTHER
    used = stack("litgpt", memory={"loss": "chunked", "loss_chunks": max(1, tokens // 128)})
    shared = Layout(shard=devices, zero=3, recompute="full", precision="bf16")
    run = Run(
        name,
        f"{devices}x{named_device(split_count(text(row, 'gpu'))[1], 40)}",
        shared if devices > 1 else Layout(precision="bf16"),
        whole(row, "micro_batch_size_seqs"),
        tokens,
        adapter=adapter_of(text(row, "section"), bits, whole(row, "trainable_params")),
        implementation=used.implementation,
    )
    assumed = [("seq_len", f"{tokens}: the longest sample of Alpaca with this tokenizer, not in the table")]
    if devices > 1:
        assumed.append(("zero_stage", "3, every block recomputed: the script's strategy for several devices"))
    return MeasuredRun(name, "", run, used.software, assumed=tuple(assumed))


def describe(row: Row) -> MeasuredRun:
    """One row: finetuning with an adapter, or inference."""
    section, name = text(row, "section"), described_model(row)
    devices, device = split_count(text(row, "gpu"))
    bits = choice(row, "quantization", BITS)
    if devices > 1 and bits < 16:
        raise NotPredictable(f"{devices} devices with 4-bit weights: litgpt's script refuses that")
    if "Inference" in section:
        if devices > 1:
            raise NotPredictable(f"inference on {devices} devices: how the model is cut is not in the row")
        measured = inference(name, f"1x{named_device(device, GPUS.get(device, 0))}", bits)
    else:
        measured = finetuning(row, name, devices, bits)
    memory_of = ("device", "A100 with 40 GB: the source's heading")
    return replace(
        measured,
        name=f"{name} {text(row, 'quantization')}",
        group=section,
        assumed=(*measured.assumed, memory_of, ("precision", "bf16: the source's heading")),
    )


SOURCE = Source(
    ("litgpt_resource_tables_a100_40gb",),
    describe,
    {
        "max_gpu_ram_text": memory(ALLOCATED),
        "time_1k_iterations_text": unused,
        "inference_tokens_per_s": unused,
    },
    time_unread="sequences of unequal length, padded to the longest of each batch",
)
