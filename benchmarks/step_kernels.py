"""What kernels reach within a step of training, and what a host takes for experts.

    python benchmarks/step_kernels.py

Profiles of training on B200 are compared with what the time model says of the very same shapes, had a step
all of what was timed alone. The quotients are constants of GB200 and B200 in `rates.toml` (`sustained`,
`sustained_fp8`, `attention`, `pointwise`) and counts of `workshop.facts.stack` (`expert_kernels`,
`kernels_per_expert`, `host_in_8_bits`). No published step time is in them, but that of one profile, with
the profiler and without, by which the host's time is brought down.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workshop.facts.catalogue import device
from workshop.facts.layout import Layout
from workshop.facts.microbenchmarks import (
    StepKernel,
    host,
    host_of_experts,
    host_of_formats,
    step_kernels,
)
from workshop.facts.run import Run
from workshop.facts.stack import software
from workshop.predict.case import Setting, setting_of
from workshop.predict.layouts import Layouts
from workshop.predict.time.attention import attention_seconds
from workshop.predict.time.layer import layer_linears
from workshop.predict.time.matmul import Product, linear_seconds, training_matmul_seconds
from workshop.predict.time.rates import rates_of

PASSES = ("forward", "input_gradient", "weight_gradient")
SHAPES = {
    "deepseek-v3": ("256xB200", Layout(shard=32, zero=1, pipeline=8, expert=8), 4096),
    "llama-3.1-405b": (
        "64xB200",
        Layout(shard=2, zero=1, tensor=4, sequence_parallel=True, pipeline=8),
        8192,
    ),
    "qwen3-235b-a22b": ("256xB200", Layout(shard=32, zero=1, pipeline=8, expert=8), 4096),
}
"""A layout with the sizes of each profile that a layer's kernels see."""
DENSE_LAYERS, MIXTURE_LAYERS = 3, 1
"""Of DeepSeek-V3's first stage. Each makes the second projections of its latent attention again."""
AGAIN = ("q_up", "kv_up")


def case(name: str, precision: str) -> tuple[Setting, Layouts]:
    """A profile's model in its layout, where a step keeps all of what kernels reach alone."""
    cluster, layout, seq_len = SHAPES[name]
    run = Run(
        name,
        cluster,
        replace(layout, precision=precision),
        1,
        seq_len,
        accumulation=1,
        implementation="megatron",
    )
    rates = rates_of("B200").with_values(sustained=1.0, sustained_fp8=1.0, attention=1.0)
    return setting_of(run, software("megatron-bridge"), rates), Layouts.of_runs([run])


def product_seconds(setting: Setting, layouts: Layouts, kind: str, again: bool) -> float:
    """All products of a layer, casts not counted; again: the forward ones once more, or those of latents."""
    machine = replace(setting.machine, cast_bytes=0.0)
    linears = layer_linears(setting.model, kind)
    first = linear_seconds(linears, layouts, machine)
    repeated = [x for x in linears if x.name in AGAIN] or linears
    more = linear_seconds(repeated, layouts, machine).forward if again else 0.0
    return float(np.sum(first.forward + first.backward + first.weight + more))


def expected(row: StepKernel) -> float:
    """Seconds of a kernel, or of a layer's products, had a step all of what was timed alone."""
    precision = {"bf16": "megatron-bf16", "fp8": "megatron-fp8", "fp4": "megatron-fp4"}[row.dtype]
    setting, layouts = case(row.model, precision)
    if row.part == "attention":
        return float(np.sum(attention_seconds(setting, layouts)[row.kernel == "backward"]))
    if row.part == "head":
        machine, model = setting.machine, setting.model
        product = Product(layouts.tokens[0], model.vocab_size, model.hidden_size)
        three = training_matmul_seconds(machine.rates, machine.attention, machine.feed, product)
        return float(three[PASSES.index(row.kernel)])
    if setting.model.is_moe:
        dense, mixture = (product_seconds(setting, layouts, kind, True) for kind in ("dense", "moe"))
        return (DENSE_LAYERS * dense + MIXTURE_LAYERS * mixture) / (DENSE_LAYERS + MIXTURE_LAYERS)
    return product_seconds(setting, layouts, "dense", True)


def shares() -> dict[str, float]:
    """The constants that the profiles say. No share is above one: of a head's products they are."""
    by_part: dict[str, list[float]] = {"head": [], "products": [], "attention": []}
    moving = [row for row in step_kernels() if row.part == "pointwise"]
    for row in step_kernels():
        if row.part in by_part:
            by_part[row.part].append(expected(row) / row.seconds)
    sustained = min(float(np.mean(by_part["head"])), 1.0)
    moved, seconds = (sum(row.calls * getattr(row, name) for row in moving) for name in ("bytes", "seconds"))
    return {
        "sustained": sustained,
        "sustained_fp8": min(float(np.mean(by_part["products"])), 1.0),
        "attention": float(np.mean(by_part["attention"])) / sustained,
        "pointwise": moved / seconds / device("B200").memory_bandwidth,
    }


def counts() -> dict[str, float]:
    """What a host takes for a layer of experts and for each, in launches, and how much longer in 8 bits."""
    parts = {row.part: row for row in host_of_experts()}
    eager = next(row for row in host() if row.device == "A100-80GB")
    launch = eager.seconds / eager.kernels
    layer, experts = parts["layer"], parts["experts"]
    (formats,) = host_of_formats()
    return {
        "expert_kernels": (layer.unprofiled - experts.unprofiled) / launch,
        "kernels_per_expert": experts.unprofiled / experts.experts / launch,
        "host_in_8_bits": formats.seconds_8_bits / formats.seconds_16_bits,
    }


def main() -> None:
    """Print what is found, kernel by kernel."""
    for row in step_kernels():
        if row.part == "pointwise":
            share, of = row.bytes / row.seconds / device(row.device).memory_bandwidth, "bandwidth"
        else:
            share, of = expected(row) / row.seconds, "rate alone"
        print(
            f"{row.model:<16} {row.dtype:<5} {row.part:<10} {row.kernel:<18} {row.seconds * 1e6:8.1f} us "
            f"{share:6.1%} of the {of}"
        )
    for name, value in {**shares(), **counts()}.items():
        print(f"{name:<20} {value:.3g}")


if __name__ == "__main__":
    main()
