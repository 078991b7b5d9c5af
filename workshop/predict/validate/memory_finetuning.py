"""Published memory of finetuning: torchtune and litgpt.

``torchtune_memory_speed.csv``
    "Peak active" GiB: **allocated** bytes. A row "+ X" has all options named above it too; LoRA and QLoRA
    have all but the optimizer's step in backward. Recipes keep everything in bf16; the 8B full finetune pages
    an 8-bit optimizer to the host (recipes/configs/llama3_1/8B_full_single_device.yaml of pytorch/torchtune).
``litgpt_resource_tables_a100_40gb.csv``
    ``torch.cuda.max_memory_allocated`` in GB of 10**9 bytes, ``bf16-true``. The script's batch is as long as
    the longest sample of Alpaca: 1,304 tokens with Llama's tokenizer, 1,037 with the others'. These two
    lengths are not in the table and are assumed.
"""

from __future__ import annotations

from workshop.facts.device import split_count
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.nf4 import nf4_bits
from workshop.facts.run import Adapter, Run
from workshop.predict.validate.memory_cases import MemoryCase, NotPredictable, Row, amount, count, text

NF4_BITS = {"bnb.nf4": nf4_bits(double=False), "bnb.nf4-dq": nf4_bits(double=True)}
"""NF4 with an fp32 scale per 64 weights; with double quantization (arXiv 2305.14314, section 3)."""
TORCHTUNE_STEPS = (
    "packed dataset",
    "compile",
    "chunked cross entropy",
    "activation checkpointing",
    "fuse optimizer step into backward",
    "activation offloading",
    "8-bit adamw",
)
ALPACA_LONGEST = {"Llama 2": 1304, "CodeLlama": 1304}
ALPACA_LONGEST_OTHER = 1037
LITGPT_MODELS = {
    "phi-1.5": "phi-1.5",
    "StableLM Alpha": "stablelm-alpha-3b",
    "Llama 2": "llama-2-7b",
    "CodeLlama": "codellama-34b",
    "Falcon": "falcon-7b",
    "Pythia": "pythia-6.9b",
}
LITGPT_BY_SIZE = {
    ("Llama 2", "13 B"): "llama-2-13b",
    ("Llama 2", "70 B"): "llama-2-70b",
    ("StableLM Alpha", "7 B"): "stablelm-alpha-7b",
    ("Falcon", "40 B"): "falcon-40b",
}


def torchtune(row: Row, number: int) -> MemoryCase:
    """bf16 throughout; one device, or FSDP2 over those of a node."""
    method, settings = text(row, "method").lower(), text(row, "settings").lower()
    options = torchtune_options(method, settings)
    if "packed dataset" not in options:
        raise NotPredictable("the dataset is not packed, so the tokens of a batch are unknown")
    number_of, device = torchtune_devices(text(row, "hardware"))
    adapter = None
    if "lora" in method:
        bits = NF4_BITS["bnb.nf4-dq"] if method.startswith("q") else 16
        adapter = Adapter("lora", 8, ("q", "v", "attention_out"), bits)
    if number_of > 1:
        options.discard("fuse optimizer step into backward")
    how = implementation(
        "torchtune",
        compile="compile" in options,
        optimizer_in_backward="fuse optimizer step into backward" in options,
        loss="chunked" if "chunked cross entropy" in options else "eager",
        loss_chunks=8,
    )
    layout = Layout(
        shard=number_of,
        zero=3 if number_of > 1 else 0,
        precision="bf16",
        recompute="full" if "activation checkpointing" in options else "none",
        offload=torchtune_offload(options, settings, device, adapter is None),
    )
    run = Run(
        text(row, "model").lower().replace(" ", "-"),
        f"{number_of}x{device}",
        layout,
        count(row, "batch_size_seqs"),
        count(row, "max_seq_len_tokens"),
        adapter=adapter,
        implementation=how,
        optimizer="adamw-8bit" if "8-bit adamw" in options else "adamw",
    )
    measured = amount(text(row, "peak_memory_per_gpu_text"))[0]
    group = text(row, "table")[:20]
    return MemoryCase("torchtune_memory_speed", group, number, method, "allocated", measured, run)


def torchtune_devices(hardware: str) -> tuple[int, str]:
    """``"8x A100"`` as a count and a device of the catalogue."""
    number_of, name = split_count(hardware)
    device = {"A100": "A100-80GB", "4090": "RTX-4090", "A6000": "RTX-A6000", "H100": "H100"}.get(name)
    if device is None:
        raise NotPredictable(f"hardware {hardware!r} is not known here")
    return number_of, device


def torchtune_offload(options: set[str], settings: str, device: str, full: bool) -> str:
    """What the recipe keeps on the host: the single-device recipe of the 8B model pages its optimizer."""
    if "offload" in settings and "activation" not in settings:
        return "params"
    if "activation offloading" in options:
        return "activations"
    return "optimizer" if "packed" in settings and full and device.startswith("RTX") else "none"


def torchtune_options(method: str, settings: str) -> set[str]:
    """The options in force for a row."""
    if "packed" in settings:  # the table of models: the default recipes, packed and compiled
        options = set(TORCHTUNE_STEPS[:4])
        return options if "lora" in method else options | {"fuse optimizer step into backward"}
    if "lora" in method:
        return set(TORCHTUNE_STEPS) - {"fuse optimizer step into backward"}
    step = method.removeprefix("+").strip()
    return set(TORCHTUNE_STEPS[: TORCHTUNE_STEPS.index(step) + 1]) if step in TORCHTUNE_STEPS else set()


def litgpt(row: Row, number: int) -> MemoryCase:
    """One A100 of 40 GB; adapters on frozen bf16 or NF4 weights, or inference."""
    measured, section = text(row, "max_gpu_ram_text"), text(row, "section")
    family, size = text(row, "model"), text(row, "size")
    name = LITGPT_BY_SIZE.get((family, size)) or LITGPT_MODELS.get(family)
    if name is None:
        raise NotPredictable(f"model {family!r} is not known here")
    out_of_memory = measured.upper() == "OOM"
    quantity = "out_of_memory" if out_of_memory else "allocated"
    value = 1.0 if out_of_memory else amount(measured)[0]
    bits = NF4_BITS.get(text(row, "quantization"), 16)
    tokens = ALPACA_LONGEST.get(family, ALPACA_LONGEST_OTHER)
    if "Inference" in section:
        run = litgpt_inference(name, bits)
    else:
        how = implementation("litgpt", loss="chunked", loss_chunks=max(1, tokens // 128))
        run = Run(
            name,
            "A100-40GB",
            Layout(precision="bf16"),
            count(row, "micro_batch_size_seqs"),
            tokens,
            adapter=litgpt_adapter(section, bits, count(row, "trainable_params")),
            implementation=how,
        )
    return MemoryCase(
        "litgpt_resource_tables_a100_40gb",
        section,
        number,
        f"{name} {text(row, 'quantization')}",
        quantity,
        value,
        run,
    )


def litgpt_adapter(section: str, bits: float, trainable: int) -> Adapter:
    """LoRA of rank 8 on queries and values, LLaMA-Adapter, or its second version on every linear map."""
    if "LoRA" in section:
        return Adapter("lora", 8, ("q", "v"), bits, trainable)
    if "v2" in section:
        return Adapter("adapter-v2", 8, ("all",), bits, trainable)
    return Adapter("adapter", 8, ("q",), bits, trainable)


def litgpt_inference(name: str, bits: float) -> Run:
    """Weights only: generation keeps no gradients, and its cache is small beside them."""
    how = implementation("litgpt", loss="fused", step_room=0)
    frozen = Adapter("adapter", 1, ("q",), bits, 1)
    return Run(
        name,
        "A100-40GB",
        Layout(precision="bf16", recompute="full"),
        1,
        1,
        adapter=frozen,
        optimizer="none",
        implementation=how,
    )
