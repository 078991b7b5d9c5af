"""From a layout to a model that trains so: the only place that knows the order.

    1. tensor       a layer's matrices are cut                 (a later lesson)
    2. context      its sequence is cut                        (a later lesson)
    3. recompute    what is left of it keeps less
    4. compile      what is left of it becomes one program
    5. shard        its parameters are spread over ranks, or copied to all
    6. optimizer    over what a rank then holds

Each must see what the one before has made. Recompute around a compiled layer would cut the compiler's view in
two; sharding must hook around the compiled program, for its gathers are no part of it; and an optimizer made
before sharding would hold the whole weights.

A precision recipe belongs to an engine (`workshop.facts.precision`: they keep different copies), and so the
layout names its engine::

    zero 0   fp32, amp-bf16, amp-fp16, bf16                   plain on one rank, else DDP
             fsdp-bf16                                        FSDP2 that replicates and cuts nothing
    zero 1   fp32, deepspeed-bf16, deepspeed-fp16             DeepSpeed
    zero 2   fp32, fsdp-bf16, amp-bf16, bf16                  FSDP2, weights whole from forward to backward
    zero 3   the same                                         FSDP2
    any      deepspeed-bf16, deepspeed-fp16                   DeepSpeed
    any      fp32, amp-bf16, deepspeed-bf16 and engine="zero" ZeRO written by hand (workshop.parallel.zero)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workshop.facts.layout import Layout
from workshop.parallel.materialise import Initialise, local_device
from workshop.parallel.wrapping import layers
from workshop.train.optimizers import FLAT, build_optimizers, optimizer_class
from workshop.train.ready import Contexts, Ready, ReadyDeepSpeed, ReadyZero
from workshop.train.recompute import apply_recompute
from workshop.train.settings import Settings

RECIPES = {
    "plain": ("fp32", "amp-bf16", "amp-fp16", "bf16"),
    "ddp": ("fp32", "amp-bf16", "amp-fp16", "bf16"),
    "zero": ("fp32", "amp-bf16", "deepspeed-bf16"),
    "deepspeed": ("fp32", "deepspeed-bf16", "deepspeed-fp16"),
    "fsdp": ("fp32", "fsdp-bf16", "amp-bf16", "bf16"),
}
"""Precision recipes that each engine trains in."""
STAGES = {"plain": (0,), "ddp": (0,), "zero": (0, 1, 2, 3), "deepspeed": (0, 1, 2, 3), "fsdp": (0, 2, 3)}
OFFLOADS = {
    "plain": ("none", "activations"),
    "ddp": ("none", "activations"),
    "zero": ("none",),
    "deepspeed": ("none", "optimizer", "params"),
    "fsdp": ("none", "params", "activations"),
}
LATER = {"tensor": "tensor parallelism", "context": "context parallelism", "pipeline": "pipelines"}


def apply_layout(
    model: nn.Module,
    layout: Layout,
    settings: Settings | None = None,
    *,
    micro_batch: int = 1,
    initialise: Initialise | None = None,
) -> Ready:
    """The model on this rank's device, cut as the layout says, with its optimizer: ready for the loop.

    Args:
        model: ``model(tokens, targets)`` gives the mean loss. It is changed in place. All ranks begin with
            rank 0's weights, however they were seeded.
        layout: for as many ranks as there are; one rank needs no process group, unless its recipe is FSDP's
            or DeepSpeed's.
        settings: which optimizer, engine and compiler; see `Settings`.
        micro_batch: sequences of a micro-batch, which DeepSpeed wants to know.
        initialise: sets the parameters that one module itself holds; wanted where the model is on the meta
            device (FSDP, ZeRO by hand), so that no rank ever holds it whole.

    Raises:
        ValueError: the layout is for another number of ranks, or asks for what no engine here does; the
            message says what would do.
    """
    settings = settings or Settings()
    engine = choose_engine(layout, settings.engine)
    _check_ranks(layout, engine)
    if layout.precision == "bf16" or (engine == "zero" and layout.precision == "deepspeed-bf16"):
        model.to(torch.bfloat16)
    if engine in ("plain", "ddp", "zero") and not any(parameter.is_meta for parameter in model.parameters()):
        model.to(local_device())  # FSDP and DeepSpeed move what a rank keeps, part by part
    apply_recompute(model, layout)
    if settings.compile:
        for layer in layers(model):
            layer.compile(backend=settings.compile)
    around = _around_forward(layout)
    if engine == "deepspeed":
        return _deepspeed(model, layout, settings, micro_batch, around)
    if engine == "zero":
        return _zero(model, layout, settings, initialise, around)
    if engine == "fsdp":
        if settings.optimizer == "adafactor":
            raise ValueError("torch's Adafactor does not take sharded weights: use lion (one moment), or DDP")
        model = _fsdp(model, layout, initialise)
    if engine == "ddp":
        from workshop.parallel.ddp import wrap_ddp

        model = wrap_ddp(model)
    optimizers = build_optimizers(settings.optimizer, model, settings.learning_rate, settings.weight_decay)
    scaler = torch.amp.GradScaler(local_device().type) if layout.precision == "amp-fp16" else None
    return Ready(model, optimizers, around_forward=around, waits=engine == "ddp", scaler=scaler)


def choose_engine(layout: Layout, asked: str = "auto") -> str:
    """The engine for a layout; ValueError with every reason against it."""
    for axis, name in LATER.items():
        if getattr(layout, axis) > 1:
            raise ValueError(
                f"layout: {axis} = {getattr(layout, axis)}: train() does not cut along this axis yet ({name} "
                "come in a later lesson); predict_memory(run) and plan(run) know it"
            )
    if layout.expert > 1:
        raise ValueError(
            f"layout: expert = {layout.expert}: train() does not deal out experts to ranks yet; "
            "workshop.parallel.expert does"
        )
    engine = _usual_engine(layout) if asked == "auto" else asked
    against = _against(layout, engine)
    if against:
        raise ValueError(f"{engine} cannot train this layout:\n- " + "\n- ".join(against))
    return engine


def _usual_engine(layout: Layout) -> str:
    if layout.precision.startswith("deepspeed") or layout.offload == "optimizer":
        return "deepspeed"
    if layout.precision.startswith("fsdp"):
        return "fsdp"
    if layout.zero == 0:
        return "ddp" if layout.world_size > 1 else "plain"
    return "deepspeed" if layout.zero == 1 else "fsdp"


def _against(layout: Layout, engine: str) -> list[str]:
    """Every reason why an engine cannot do a layout, with what would do."""
    found = []
    if layout.precision not in RECIPES[engine]:
        others = [name for name, recipes in RECIPES.items() if layout.precision in recipes]
        whose = f"it is {' and '.join(others)}'s" if others else "no engine here trains in it yet"
        found.append(
            f"precision {layout.precision!r}: {whose}; {engine} trains in {', '.join(RECIPES[engine])}"
        )
    if layout.zero not in STAGES[engine]:
        stages = ", ".join(map(str, STAGES[engine]))
        found.append(
            f"zero = {layout.zero}: {engine} does stage {stages} (engine='zero' or 'deepspeed': all)"
        )
    if layout.offload not in OFFLOADS[engine]:
        found.append(f"offload {layout.offload!r}: {engine} knows {', '.join(OFFLOADS[engine])}")
    if engine == "plain" and layout.world_size > 1:
        found.append(f"{layout.world_size} ranks: plain is one rank that talks to nobody")
    if engine in ("zero", "deepspeed") and layout.zero and layout.replicate > 1:
        found.append(
            f"replicate = {layout.replicate} beside shard = {layout.shard}: only fsdp shards inside groups "
            f"and replicates between them; {engine} takes Layout(shard={layout.data_parallel})"
        )
    return found


def _check_ranks(layout: Layout, engine: str) -> None:
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if layout.world_size != ranks:
        axis = "shard" if layout.zero else "replicate"
        raise ValueError(
            f"the layout is for {layout.world_size} ranks and there are {ranks}: Layout({axis}={ranks}, ...)"
        )
    if engine in ("fsdp", "deepspeed", "zero", "ddp") and not dist.is_initialized():
        raise ValueError(
            f"{engine} needs a process group, also for one rank: dist.init_process_group() first"
        )


def _around_forward(layout: Layout) -> Sequence[Contexts]:
    """Contexts of every forward: 16-bit arithmetic by autocast, activations kept on the host."""
    around: list[Contexts] = []
    device = local_device().type
    if layout.precision.startswith("amp-"):
        dtype = torch.bfloat16 if layout.precision == "amp-bf16" else torch.float16
        around.append(partial(torch.autocast, device, dtype))
    if layout.offload == "activations":
        around.append(partial(torch.autograd.graph.save_on_cpu, pin_memory=device == "cuda"))
    return around


def _fsdp(model: nn.Module, layout: Layout, initialise: Initialise | None) -> nn.Module:
    """FSDP2 over (replicate, shard); stage 2 keeps the weights whole between forward and backward."""
    from torch.distributed.device_mesh import init_device_mesh

    from workshop.parallel.fsdp import shard_model

    shard = layout.shard if layout.zero else 1
    mesh = init_device_mesh(
        local_device().type, (layout.world_size // shard, shard), mesh_dim_names=("replicate", "shard")
    )
    options: dict[str, Any] = {"initialise": initialise} if initialise else {}
    return shard_model(
        model,
        mesh["shard"] if layout.world_size == shard else mesh,
        precision="fp32" if layout.precision == "amp-bf16" else layout.precision,
        reshard=layout.zero == 3,
        offload=layout.offload == "params",
        **options,
    )


def _zero(
    model: nn.Module,
    layout: Layout,
    settings: Settings,
    initialise: Initialise | None,
    around: Sequence[Contexts],
) -> Ready:
    from workshop.parallel.zero import zero

    if settings.optimizer not in FLAT:
        raise ValueError(
            f"{settings.optimizer} looks at whole matrices, and ZeRO by hand gives it parts of flat tensors: "
            f"use one of {', '.join(FLAT)}, or engine 'fsdp'"
        )
    kind, options = optimizer_class(settings.optimizer)
    if settings.weight_decay:
        raise ValueError(
            f"weight_decay = {settings.weight_decay}: ZeRO by hand joins matrices and vectors in one flat "
            "tensor and would decay both; use 0, or engine 'fsdp' or 'deepspeed'"
        )
    options = {**options, "lr": settings.learning_rate, "weight_decay": 0.0}
    optimizer = zero(model, layout.zero, optimizer=kind, initialise=initialise, **options)
    return ReadyZero(model, optimizer, around)


def _deepspeed(
    model: nn.Module, layout: Layout, settings: Settings, micro_batch: int, around: Sequence[Contexts]
) -> Ready:
    from workshop.parallel.deepspeed_zero import deepspeed_engine

    optimizers = build_optimizers(settings.optimizer, model, settings.learning_rate, settings.weight_decay)
    if len(optimizers) > 1:
        raise ValueError(
            f"deepspeed takes one optimizer, {settings.optimizer} is {len(optimizers)}: use adamw"
        )
    engine = deepspeed_engine(
        model,
        layout,
        optimizer=optimizers[0],
        learning_rate=settings.learning_rate,
        micro_batch=micro_batch,
        settings={"gradient_clipping": settings.clip_norm},
    )
    return ReadyDeepSpeed(engine, around)
