"""Published memory of pretraining: torchtitan, nanotron, InternEvo.

``torchtitan_performance.csv``
    Largest **reserved** memory of all ranks, in GiB.
``nanotron_ultrascale_best_configs_h100.csv``
    Printed as "GB" but divided by 1024**3 in nanotron's logger; taken as **reserved** memory. Models and
    vocabulary (131,072 words, embeddings tied below an MLP of 10,000, as many key-value heads as heads,
    sequence parallel) are those of scripts/scaling_benchmarks.py of huggingface/nanotron.
``internevo_memory_a800.csv``
    What the **device** shows, in GB; configs/7B_sft.py of InternLM/InternEvo gives sequence and vocabulary.
"""

from __future__ import annotations

from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.validate.memory_cases import (
    GIB,
    MemoryCase,
    NotPredictable,
    Row,
    amount,
    count,
    flag,
    text,
)

NANOTRON_VOCAB = 131072
NANOTRON_SHAPES = (
    (16, 2048, 32, 8192),
    (28, 3072, 32, 8192),
    (30, 3072, 32, 8192),
    (32, 4096, 32, 14336),
    (80, 8192, 64, 28672),
    (126, 16384, 128, 53248),
)


def torchtitan(row: Row, number: int) -> MemoryCase:
    """FSDP2 with fp32 shards and bf16 compute; tensor parallelism comes with sequence and loss
    parallelism.
    """
    if not text(row, "peak_memory_GiB"):
        raise NotPredictable("peak_memory_GiB is not given")
    name = text(row, "model").lower().replace("llama", "llama-")
    sizes = {axis: count(row, axis, 1) for axis in ("fsdp", "tp", "pp", "cp")}
    wanted = text(row, "activation_checkpointing")
    devices = count(row, "gpus")
    shard = sizes["fsdp"]
    replicate = max(1, devices // (shard * sizes["tp"] * sizes["pp"] * sizes["cp"]))
    layout = titan_layout(row, sizes, replicate, catalogue.model(name).num_layers)
    how = implementation(
        "torchtitan", compile=flag(row, "compile"), loss="loss-parallel" if sizes["tp"] > 1 else "eager"
    )
    local, data = count(row, "local_batch_size_seqs"), shard * replicate
    micro = local // sizes["pp"] if sizes["pp"] > 1 and local >= sizes["pp"] else local
    run = Run(
        name,
        f"{devices}x{titan_device(row)}",
        layout,
        micro,
        count(row, "seq_len_tokens"),
        global_batch=local * data,
        implementation=how,
    )
    return MemoryCase(
        "torchtitan_performance",
        text(row, "model"),
        number,
        wanted,
        "reserved",
        float(text(row, "peak_memory_GiB")) * GIB,
        run,
    )


def titan_layout(row: Row, sizes: dict[str, int], replicate: int, layers: int) -> Layout:
    """The layout of one row; ``sizes`` by axis."""
    wanted = text(row, "activation_checkpointing")
    selective = wanted.startswith("selective")
    return Layout(
        shard=sizes["fsdp"],
        replicate=replicate,
        zero=3,
        tensor=sizes["tp"],
        sequence_parallel=sizes["tp"] > 1,
        pipeline=sizes["pp"],
        virtual_stages=2 if "interleaved" in text(row, "pp_schedule").lower() else 1,
        context=sizes["cp"],
        recompute="selective" if selective else wanted or "none",
        recompute_modules=("ops",) if selective and "layer" not in wanted else (),
        recompute_layers=layers // 2 if "layer" in wanted else 0,
        precision="fsdp-bf16" if text(row, "float8") in ("", "0") else "fsdp-fp8",
    )


def titan_device(row: Row) -> str:
    """The device's name in the catalogue."""
    name = text(row, "gpu")
    for known in ("A100 80GB", "A100 40GB", "H200", "B200", "GB200", "MI300X"):
        if name.startswith(known):
            return known.replace(" ", "-")
    if name.startswith("H100"):
        return "H100-96GB" if "96GB" in name else "H100"
    raise NotPredictable(f"device {name!r} is not known here")


def nanotron_model(billions: float) -> ModelSpec:
    """The shape whose parameter count matches the row's ``"3.57B"``."""
    shapes = [
        ModelSpec(
            f"nanotron-{layers}x{hidden}",
            layers,
            hidden,
            heads,
            NANOTRON_VOCAB,
            ffn_hidden_size=ffn,
            tied_embeddings=ffn < 10_000,
        )
        for layers, hidden, heads, ffn in NANOTRON_SHAPES
    ]
    best = min(shapes, key=lambda shape: abs(shape.num_params / 1e9 - billions))
    if abs(best.num_params / 1e9 / billions - 1) > 0.02:
        raise NotPredictable(f"no benchmark shape of nanotron has {billions}B parameters")
    return best


def nanotron_first_layers(model: ModelSpec, stages: int) -> int:
    """Layers on the first of ``stages``: nanotron cuts by cost, and the head costs as a layer of its size
    would.

    A block that crosses the stage's share still belongs to it.
    """
    layer = sum(linear.weights for linear in model.linears())
    share = (layer * model.num_layers + model.vocab_size * model.hidden_size) / stages
    return int(share // layer) + 1


def nanotron(row: Row, number: int) -> MemoryCase:
    """bf16 weights, fp32 gradients and master weights; ZeRO-1; 1F1B."""
    model = nanotron_model(float(text(row, "model_params").rstrip("B")))
    dp, tp, pp = count(row, "dp"), count(row, "tp"), count(row, "pp")
    zero = count(row, "zero_stage", 0)
    first = nanotron_first_layers(model, pp) if pp > 1 else 0
    last = model.num_layers - (pp - 1) * first if pp > 1 else 0
    layout = Layout(
        shard=dp if zero else 1,
        replicate=1 if zero else dp,
        zero=zero,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        first_stage_layers=first,
        last_stage_layers=max(last, 0),
        precision="megatron-bf16",
    )
    run = Run(
        model,
        f"{dp * tp * pp}xH100",
        layout,
        count(row, "micro_batch_size_seqs"),
        4096,
        accumulation=count(row, "grad_accum"),
        implementation="nanotron",
    )
    return MemoryCase(
        "nanotron_ultrascale_best_configs_h100",
        text(row, "model_params"),
        number,
        f"dp{dp} tp{tp} pp{pp}",
        "reserved",
        float(text(row, "memory_GB")) * GIB,
        run,
    )


def internevo(row: Row, number: int) -> MemoryCase:
    """Hybrid ZeRO with bf16 weights and gradients and fp32 master weights, or FSDP; full recomputation."""
    names = {"7b": "internlm-7b", "20b": "internlm-20b"}
    if text(row, "model").lower() not in names:
        raise NotPredictable(f"model {text(row, 'model')!r} is not known here")
    tp, pp, devices = count(row, "tp"), count(row, "pp"), count(row, "gpus")
    sharded = flag(row, "fsdp")
    layout = Layout(
        shard=devices // (tp * pp),
        zero=3 if sharded else 1,
        tensor=tp,
        pipeline=pp,
        recompute="full",
        precision="deepspeed-bf16",
    )
    # FSDP's shards are flat already: only the cast to fp32 and the optimizer's two temporaries remain.
    how = implementation("internevo", step_room=12 if sharded else 14)
    run = Run(
        names[text(row, "model").lower()],
        f"{devices}xA800-80GB",
        layout,
        count(row, "micro_batch_size_seqs"),
        2048,
        accumulation=count(row, "micro_num"),
        implementation=how,
    )
    return MemoryCase(
        "internevo_memory_a800",
        text(row, "model"),
        number,
        f"tp{tp} pp{pp} fsdp {sharded}",
        "device",
        amount(text(row, "gpu_memory_GB") + " GB")[0],
        run,
    )
