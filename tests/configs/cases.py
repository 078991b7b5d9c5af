"""Runs that the tests of `workshop.configs` write, read and use; and where their golden files lie."""

from __future__ import annotations

from pathlib import Path

from workshop.configs import OneBit
from workshop.facts.layout import Layout
from workshop.facts.run import Run

GOLDEN = Path(__file__).parent / "golden"


def run(layout: Layout, model: str = "llama-3-8b", **more) -> Run:
    settings = {"micro_batch": 2, "seq_len": 4096, "accumulation": 4}
    cluster = more.pop("cluster", f"{layout.world_size}xH100")
    return Run(model, cluster, layout, **{**settings, **more})


def small(**layout) -> Run:
    """Two processes of this machine: what the tests really start."""
    return Run("gpt-1m", "this-machine", Layout(**layout), micro_batch=8, seq_len=32)


ACCELERATE = {
    "ddp-8": (run(Layout(replicate=8, precision="amp-bf16"), "smollm2-1.7b"), {}),
    "ddp-16-fp16": (run(Layout(replicate=16, precision="amp-fp16"), "smollm2-1.7b"), {}),
    "ddp-2-fp32": (small(replicate=2, precision="fp32"), {}),
    "ddp-1": (run(Layout(precision="amp-bf16"), "smollm2-135m"), {}),
    "fsdp-64": (run(Layout(shard=64, zero=3, recompute="full")), {}),
    "fsdp-8-zero2": (run(Layout(shard=8, zero=2)), {}),
    "fsdp-8-offload": (run(Layout(shard=8, zero=3, offload="params")), {}),
    "fsdp-8-activations": (run(Layout(shard=8, zero=3, recompute="full", offload="activations")), {}),
    "fsdp-hybrid-4x8": (run(Layout(replicate=4, shard=8, zero=3)), {}),
    "fsdp-2-fp32": (small(shard=2, zero=3, precision="fp32"), {}),
    "deepspeed-8-zero1": (
        run(Layout(shard=8, zero=1, precision="deepspeed-bf16")),
        {"gradient_clipping": 1.0},
    ),
    "deepspeed-16-zero3-offload": (
        run(Layout(shard=16, zero=3, precision="deepspeed-bf16", offload="params"), "llama-2-70b"),
        {},
    ),
    "deepspeed-8-file": (
        run(Layout(shard=8, zero=2, precision="deepspeed-bf16")),
        {"deepspeed_file": "zero2.json"},
    ),
    "deepspeed-2-fp32": (small(shard=2, zero=2, precision="fp32"), {"engine": "deepspeed"}),
}

DEEPSPEED = {
    "zero0": (run(Layout(replicate=8, precision="deepspeed-bf16")), {}),
    "zero1-fp16": (run(Layout(shard=8, zero=1, precision="deepspeed-fp16")), {}),
    "zero2": (run(Layout(shard=8, zero=2, precision="deepspeed-bf16")), {}),
    "zero2-offload": (run(Layout(shard=8, zero=2, precision="deepspeed-bf16", offload="optimizer")), {}),
    "zero3": (run(Layout(shard=64, zero=3, precision="deepspeed-bf16")), {"gradient_clipping": 1.0}),
    "zero3-offload": (run(Layout(shard=8, zero=3, precision="deepspeed-bf16", offload="params")), {}),
    "zero3-fp32-adam": (
        run(Layout(shard=8, zero=3, precision="fp32"), optimizer="adam", implementation="deepspeed"),
        {"lr": 3e-4},
    ),
    "onebit-adam": (
        run(Layout(replicate=64, precision="deepspeed-fp16"), "bert-large", seq_len=128),
        {"onebit": OneBit("OneBitAdam", lr=4e-4, freeze_step=23_000, deepspeed_version="0.16.9")},
    ),
    "zero-one-adam": (
        run(Layout(replicate=64, precision="deepspeed-fp16"), "bert-large", seq_len=128),
        {"onebit": OneBit("ZeroOneAdam", lr=4e-4, freeze_step=2_000, deepspeed_version="0.16.9")},
    ),
}
