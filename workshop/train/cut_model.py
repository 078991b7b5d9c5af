"""The first half of `apply_layout`: cut a GPT by context, pipeline and tensor, and say who shares what.

    context    each attention asks the ranks that have the other positions     parallel.context_gpt
    pipeline   this rank's layers, and the schedule that runs them              parallel.stages, pipeline
    tensor     their matrices, by PyTorch's DTensor                             parallel.tensor_plans

Context comes first, for a stage takes over from the model where its tokens lie; then stages, so that only a
rank's own layers are cut further. What comes after this (recompute, compile, shard, optimizer) sees modules
and parameters as ever. A tensor rank's parameters are DTensors, which know their place in the whole: FSDP2
cuts them once more, and a checkpoint puts them together.

Every rank builds the whole model in its host's memory, and keeps its part. That is how all begin with the
weights of one process; a model that fits no host must be born in parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from workshop.facts.layout import Layout
from workshop.facts.precision import precision
from workshop.facts.stages import stage_layers
from workshop.models.gpt import GPT
from workshop.parallel.context_gpt import cut_context
from workshop.parallel.ddp import begin_together
from workshop.parallel.materialise import local_device
from workshop.parallel.mesh import group_along, mesh_of, new_group_of
from workshop.parallel.pipeline import StageLinks, run_order
from workshop.parallel.stages import GPTStage
from workshop.parallel.tensor_plans import cut_by_plan
from workshop.predict.pipeline import pipeline_orders
from workshop.train.ready import Contexts

Batch = Sequence[Tensor]


class Axes:
    """A layout's mesh and groups, from this rank's place. All ranks make it together.

    Without ZeRO the shard ranks divide nothing: they are counted as replicas. ``data``: the ranks that hold
    the same weights and saw other tokens, over which gradients are averaged; ``ends``: the first and the last
    stage, which share a tied embedding; ``context``: those that share a sequence. None for a group of one.
    """

    def __init__(self, layout: Layout, engine: str) -> None:
        if not layout.zero:
            layout = replace(layout, replicate=layout.data_parallel, shard=1)
        self.layout, self.place = layout, layout.coordinates(dist.get_rank())
        self.mesh = mesh_of(layout, local_device().type, keep=("shard",) if engine == "fsdp" else ())
        self.data = self.context = self.ends = None
        if engine != "fsdp":
            self.data = group_along(layout, ("context", "shard", "replicate"), "data")
        if layout.context > 1:
            self.context = self.mesh.get_group("context")
        if layout.pipeline > 1:
            columns = {layout.group(rank, "pipeline") for rank in range(layout.world_size)}
            self.ends = new_group_of(sorted((column[0], column[-1]) for column in columns), "embedding")

    @property
    def of_shards(self) -> DeviceMesh:
        """What FSDP2 shards over: shard and context ranks as one axis, after replicas, if there are any."""
        names = [axis for axis in ("shard", "context") if axis in self._names]
        shards = self.mesh[tuple(names)]._flatten("_".join(names)) if len(names) > 1 else self.mesh[names[0]]
        if "replicate" not in self._names:
            return shards
        return self.mesh["replicate", "_".join(names)] if len(names) > 1 else self.mesh["replicate", "shard"]

    @property
    def _names(self) -> tuple[str, ...]:
        return self.mesh.mesh_dim_names or ()

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.layout.world_size // self.layout.pipeline

    @property
    def loss_ranks(self) -> list[int]:
        """Ranks that know a loss: those of the last stage."""
        last = self.layout.pipeline - 1
        ranks = range(self.layout.world_size)
        return [rank for rank in ranks if self.layout.coordinates(rank)["pipeline"] == last]


def cut_model(model: nn.Module, axes: Axes, batch: tuple[int, int], around: Sequence[Contexts]) -> nn.Module:
    """The model as this rank has it: whole between its ends, or a `Pipelined` part.

    Args:
        model: a `GPT` with values, on the host; all ranks take rank 0's.
        axes: the groups of this rank, by axis of the layout.
        batch: sequences of a micro-batch, and micro-batches of a step, which a schedule must know.
        around: contexts of every forward of a stage.

    Raises ValueError for another model, or one without values.
    """
    if not isinstance(model, GPT):
        raise ValueError(f"a {type(model).__name__} cannot be cut by tensor, pipeline or context: give a GPT")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("a model on the meta device has no values to cut: build it on the CPU")
    layout = axes.layout
    begin_together(model)
    if axes.context is not None:
        cut_context(model, axes.context, method=layout.context_method)
    if layout.pipeline > 1:
        return Pipelined(model, axes, batch, around)
    return cut_tensor_axis(model.to(local_device()), axes)


def cut_tensor_axis(model: nn.Module, axes: Axes) -> nn.Module:
    """The model, or a stage of it, with its matrices cut over the tensor axis, if there is one."""
    if axes.layout.tensor > 1:
        cut_by_plan(model, axes.mesh["tensor"], sequence_parallel=axes.layout.sequence_parallel)
    return model


class Pipelined(nn.Module):
    """This rank's stages. ``model(inputs, targets)`` runs a whole step's micro-batches, forward and backward.

    It returns their mean loss, or zero where the last stage is not here. ``batch``: sequences of a
    micro-batch, and micro-batches.
    """

    def __init__(self, whole: GPT, axes: Axes, batch: tuple[int, int], around: Sequence[Contexts]) -> None:
        super().__init__()
        layout, place = axes.layout, axes.place["pipeline"]
        self.micro_batch, self.config, self.axes = batch[0], whole.config, axes
        self.num_stages = layout.pipeline * layout.virtual_stages
        orders = pipeline_orders(layout.schedule, layout.pipeline, batch[1], layout.virtual_stages)
        self.order = orders[place]
        if whole.config.tied:  # a copy on the first stage, and one on the last
            whole.lm_head.weight = nn.Parameter(whole.lm_head.weight.detach().clone())
        self.numbers = range(place, self.num_stages, layout.pipeline)
        mine = stage_layers(whole.config.num_layers, layout, place)
        for number, layers in zip(self.numbers, mine, strict=True):
            stage = GPTStage(whole, range(layers[0], layers[-1] + 1)).to(local_device())
            self.add_module(f"stage{number}", cut_tensor_axis(stage, axes))
            if around:
                stage.forward = partial(_inside, around, stage.forward)  # type: ignore[method-assign]
        self.down, self.up = (group_along(layout, ("pipeline",), "pipeline") for _ in range(2))

    @property
    def stages(self) -> dict[int, nn.Module]:
        """This rank's stages by number."""
        return {number: self.get_submodule(f"stage{number}") for number in self.numbers}

    def forward(self, inputs: Batch, targets: Batch) -> Tensor:
        """inputs, targets: of every micro-batch, (micro_batch, positions)."""
        wire = self._wire(inputs[0].shape[1])
        with warnings.catch_warnings():  # a stage may return a view: nothing here changes it in place
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
            step = run_order(self.order, self.stages, self.num_stages, (inputs, targets), _loss, wire)
        return torch.stack(step.losses).mean() if step.losses else torch.zeros((), device=wire.device)

    def _wire(self, length: int) -> StageLinks:
        layout, place = self.axes.layout, self.axes.place
        positions = length // layout.tensor if layout.sequence_parallel else length
        numbers = precision(layout.precision)
        narrow = numbers.compute == 2 and not layout.precision.startswith("amp-")  # autocast's sums are fp32
        assert self.down is not None
        assert self.up is not None
        return StageLinks(
            ((self.micro_batch, positions, self.config.hidden_size),),
            torch.bfloat16 if narrow else torch.float32,
            local_device(),
            lambda stage: layout.rank_of({**place, "pipeline": stage % layout.pipeline}),
            self.down,
            self.up,
        )


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _inside(around: Sequence[Contexts], forward: Any, x: Tensor) -> Tensor:
    with ExitStack() as stack:
        for context in around:
            stack.enter_context(context())
        return forward(x)
