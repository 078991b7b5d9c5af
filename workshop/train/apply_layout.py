"""From a layout to a model that trains so: the only place that knows the order.

    1. context      the sequence is cut: attention asks other ranks       \
    2. pipeline     this rank keeps its layers                             workshop.train.cut_model
    3. tensor       their matrices are cut                                /
    4. recompute    what is left of a layer keeps less
    5. compile      what is left of it becomes one program
    6. shard        its parameters are spread over ranks, or copied to all
    7. optimizer    over what a rank then holds

Each must see what the one before has made. A tensor rank's part of a matrix can be sharded, a shard could
not be cut into heads. Recompute around a compiled layer would cut the compiler's view in two. Sharding must
hook around the compiled program, for its gathers are no part of it. And an optimizer made before
sharding would hold the whole weights.

Which engine shards is decided in `workshop.train.settings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from workshop.facts.layout import Layout
from workshop.parallel.materialise import Initialise, local_device
from workshop.parallel.wrapping import layers
from workshop.train.cut_model import Axes, Pipelined, cut_model
from workshop.train.optimizers import build_optimizers, optimizer_class
from workshop.train.ready import Contexts, Ready, ReadyDeepSpeed, ReadyZero
from workshop.train.ready_cut import ReadyCut
from workshop.train.recompute import apply_recompute
from workshop.train.settings import Settings, choose_engine, is_cut, optimizer_problems


def apply_layout(
    model: nn.Module,
    layout: Layout,
    settings: Settings | None = None,
    *,
    micro_batch: int = 1,
    accumulation: int = 1,
    initialise: Initialise | None = None,
) -> Ready:
    """The model on this rank's device, cut as the layout says, with its optimizer: ready for the loop.

    Args:
        model: ``model(tokens, targets)`` gives the mean loss. It is changed in place. All ranks begin with
            rank 0's weights, however they were seeded.
        layout: for as many ranks as there are; one rank needs no process group, unless its recipe is FSDP's
            or DeepSpeed's.
        settings: which optimizer, engine and compiler; see `Settings`.
        micro_batch, accumulation: sequences of a micro-batch, and micro-batches of a step, which DeepSpeed
            and a pipeline want to know.
        initialise: sets the parameters that one module itself holds; wanted where the model is on the meta
            device (FSDP, ZeRO by hand), so that no rank ever holds it whole. Not where the layout cuts the
            model by tensor, pipeline or context: that needs a `GPT` with values.

    Raises:
        ValueError: the layout is for another number of ranks, or asks for what no engine here does; the
            message says what would do.
    """
    settings = settings or Settings()
    engine = choose_engine(layout, settings.engine)
    _check_ranks(layout, engine)
    for problem in optimizer_problems(settings, engine, layout):
        raise ValueError(problem)
    if is_cut(layout):
        return _cut(model, layout, settings, engine, (micro_batch, accumulation))
    if layout.precision == "bf16" or (engine == "zero" and layout.precision == "deepspeed-bf16"):
        model.to(torch.bfloat16)
    if engine in ("plain", "ddp", "zero") and not any(parameter.is_meta for parameter in model.parameters()):
        model.to(local_device())  # FSDP and DeepSpeed move what a rank keeps, part by part
    _recompute_and_compile(model, layout, settings)
    around = _around_forward(layout)
    if engine == "deepspeed":
        return _deepspeed(model, layout, settings, micro_batch, around)
    if engine == "zero":
        return _zero(model, layout, settings, initialise, around)
    if engine == "fsdp":
        model = _fsdp(model, layout, _data_mesh(layout), initialise)
    if engine == "ddp":
        from workshop.parallel.ddp import wrap_ddp

        model = wrap_ddp(model)
    optimizers = build_optimizers(settings.optimizer, model, settings.learning_rate, settings.weight_decay)
    scaler = torch.amp.GradScaler(local_device().type) if layout.precision == "amp-fp16" else None
    return Ready(model, optimizers, around_forward=around, waits=engine == "ddp", scaler=scaler)


def _cut(model: nn.Module, layout: Layout, settings: Settings, engine: str, batch: tuple[int, int]) -> Ready:
    """A model cut by context, pipeline or tensor, and around it the data-parallel axes."""
    if layout.precision == "bf16":
        model.to(torch.bfloat16)
    axes, around = Axes(layout, engine), _around_forward(layout)
    model = cut_model(model, axes, batch, around)
    _recompute_and_compile(model, layout, settings)
    if engine == "fsdp":
        for part in model.stages.values() if isinstance(model, Pipelined) else [model]:
            _fsdp(part, layout, axes.of_shards, None)
    optimizers = build_optimizers(settings.optimizer, model, settings.learning_rate, settings.weight_decay)
    return ReadyCut(model, optimizers, axes, around)


def _recompute_and_compile(model: nn.Module, layout: Layout, settings: Settings) -> None:
    apply_recompute(model, layout)
    if settings.compile:
        for layer in layers(model):
            layer.compile(backend=settings.compile)


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


def _data_mesh(layout: Layout) -> DeviceMesh:
    """(replicate, shard), or the one of them that there is."""
    shard = layout.shard if layout.zero else 1
    mesh = init_device_mesh(
        local_device().type, (layout.world_size // shard, shard), mesh_dim_names=("replicate", "shard")
    )
    return mesh["shard"] if layout.world_size == shard else mesh


def _fsdp(model: nn.Module, layout: Layout, mesh: DeviceMesh, initialise: Initialise | None) -> nn.Module:
    """FSDP2 over (replicate, shard); stage 2 keeps the weights whole between forward and backward."""
    from workshop.parallel.fsdp import shard_model

    options: dict[str, Any] = {"initialise": initialise} if initialise else {}
    return shard_model(
        model,
        mesh,
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

    kind, options = optimizer_class(settings.optimizer)
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
        micro_batch=micro_batch,
        settings={"gradient_clipping": settings.clip_norm},
    )
    return ReadyDeepSpeed(engine, around)
