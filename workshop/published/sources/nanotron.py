"""The Ultra-Scale Playbook's best layouts with nanotron on H100: bf16, FlashAttention-2, MFU against 989
TFLOP/s.

Memory is printed as "GB" but divided by 1024**3 in nanotron's logger, and taken as **reserved**. Models and
vocabulary (131,072 words, embeddings tied below an MLP of 10,000, as many key-value heads as heads,
sequence parallel) are those of scripts/scaling_benchmarks.py of huggingface/nanotron.
"""

from __future__ import annotations

from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.facts.stack import stack
from workshop.predict.case import NotPredictable
from workshop.published.cells import check_devices, memory, number, plain, text, whole
from workshop.published.record import MFU, RESERVED, MeasuredRun, Row, Source

VOCAB = 131072
SHAPES = (
    (16, 2048, 32, 8192),
    (28, 3072, 32, 8192),
    (30, 3072, 32, 8192),
    (32, 4096, 32, 14336),
    (80, 8192, 64, 28672),
    (126, 16384, 128, 53248),
)


def benchmark_model(billions: float) -> ModelSpec:
    """The shape whose parameter count is the row's, within 2 %."""
    shapes = [
        ModelSpec(
            f"nanotron-{layers}x{hidden}",
            layers,
            hidden,
            heads,
            VOCAB,
            ffn_hidden_size=ffn,
            tied_embeddings=ffn < 10_000,
        )
        for layers, hidden, heads, ffn in SHAPES
    ]
    best = min(shapes, key=lambda shape: abs(shape.num_params / 1e9 - billions))
    if abs(best.num_params / 1e9 / billions - 1) > 0.02:
        known = ", ".join(f"{shape.num_params / 1e9:.2f}" for shape in shapes)
        raise NotPredictable(
            f"no benchmark shape of nanotron has {billions} billion parameters (known: {known})"
        )
    return best


def first_layers(model: ModelSpec, stages: int) -> int:
    """Layers on the first of `stages`: nanotron cuts by cost, and the head costs as a layer of its size
    would.

    A block that crosses the stage's share still belongs to it.
    """
    layer = sum(linear.weights for linear in model.linears())
    share = (layer * model.num_layers + model.vocab_size * model.hidden_size) / stages
    return int(share // layer) + 1


def describe(row: Row) -> MeasuredRun:
    """bf16 weights, fp32 gradients and master weights; ZeRO-1 where the row says so; 1F1B."""
    size = text(row, "model_params")
    shape = benchmark_model(number({"model_params": size.rstrip("B")}, "model_params"))
    dp, tp, pp, devices = (whole(row, name) for name in ("dp", "tp", "pp", "gpus"))
    check_devices(devices, dp=dp, tp=tp, pp=pp)
    zero, used = whole(row, "zero_stage", 0), stack("nanotron")
    first = first_layers(shape, pp) if pp > 1 else 0
    layout = Layout(
        shard=dp if zero else 1,
        replicate=1 if zero else dp,
        zero=zero,
        tensor=tp,
        sequence_parallel=tp > 1,
        pipeline=pp,
        first_stage_layers=first,
        last_stage_layers=max(shape.num_layers - (pp - 1) * first, 0) if pp > 1 else 0,
        precision="megatron-bf16",
    )
    run = Run(
        shape,
        f"{devices}xH100",
        layout,
        whole(row, "micro_batch_size_seqs"),
        4096,
        accumulation=whole(row, "grad_accum"),
        implementation=used.implementation,
    )
    assumed = (
        ("device", "H100: not in the figure"),
        ("seq_len", "4096: not in the figure"),
        ("num_layers", "with the whole shape: the benchmark's shape of this parameter count"),
        ("precision", "megatron-bf16, gradients in fp32: the stack's default"),
        ("sequence_parallel", "with tensor parallelism: the benchmark's script"),
    )
    return MeasuredRun(f"{size} dp{dp} tp{tp} pp{pp}", size, run, used.software, assumed=assumed)


SOURCE = Source(
    ("nanotron_ultrascale_best_configs_h100",),
    describe,
    {"mfu_percent": plain(MFU, 0.01), "memory_GB": memory(RESERVED, "GiB")},
)
