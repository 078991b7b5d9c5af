"""How a run is cut over ranks.

Five cuts are in use, and a layout is how many ways each is made::

    tensor     inside a layer: columns and rows of its matrices     (Shoeybi et al. 2019, arXiv 1909.08053)
    context    along the sequence                                   (Liu et al. 2023, arXiv 2310.01889)
    shard      the batch, and over the same ranks state, as the     (ZeRO: Rajbhandari et al. 2020, arXiv
               ZeRO stage says                                       1910.02054; FSDP: arXiv 2304.11277)
    replicate  the batch only: plain data parallelism, or the
               outer level of hybrid sharding
    pipeline   between layers                                       (Narayanan et al. 2021, arXiv 2104.04473)

    world_size = tensor * context * shard * replicate * pipeline

Neighbouring ranks talk fastest, so the axis that talks most is the innermost: rank numbers run through
``tensor`` first, then ``context``, ``shard``, ``replicate`` and ``pipeline``, as Megatron-LM orders them
("tp-cp-dp-pp"). Experts are not a sixth factor: they are spread over ``expert`` of the ranks of one pipeline
stage, each cut ``expert_tensor`` ways, so ``tensor * context * shard * replicate`` must divide by their
product.

The ZeRO stage says what the ``shard`` ranks divide between them: 0 nothing, 1 the optimizer's state
(Megatron's "distributed optimizer"), 2 also gradients, 3 also parameters (FSDP with
``reshard_after_forward=True``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from workshop.facts.checks import check_choice, check_not_negative, check_positive
from workshop.facts.precision import RECIPES
from workshop.facts.tables import check_kind

AXES = ("tensor", "context", "shard", "replicate", "pipeline")
"""Axes from the fastest-running rank digit to the slowest."""

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zbv", "dualpipe")
FOLDED = ("zbv", "dualpipe")  # a rank holds a stage of either half
CONTEXT_METHODS = ("ring", "ulysses", "all_gather")
RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "optimizer", "params", "activations")
RECOMPUTE_MODULES = (
    "core_attn",
    "ops",
    "mlp",
    "moe",
    "mlp_up",
    "mlp_act",
    "moe_act",
    "qkv",
    "mla_up_proj",
    "attention_out",
    "latent",
    "layernorm",
    "norm_input",
    "dropout",
    "router",
    "shared_experts",
)
"""What ``recompute_modules`` may name; "ops" is PyTorch's checkpointing by operation and stands alone."""


@dataclass(frozen=True)
class Layout:
    """A way to cut a run.  ``Layout()`` is one rank.

    ``recompute`` names the policy: ``"none"``; ``"selective"`` (which modules, in ``recompute_modules``: by
    default the core of attention, as in Korthikanti et al. 2022); ``"full"`` (only the input of each layer is
    kept, or of every ``recompute_every`` layers).  ``recompute_layers`` limits it to that many layers of a
    stage; zero means all.  ``first_stage_layers`` and ``last_stage_layers`` make pipeline stages uneven.
    ``context_method`` says how context ranks get at each other's keys and values: ``"ring"`` passes them on
    (arXiv 2310.01889), ``"ulysses"`` trades heads for positions (arXiv 2309.14509), ``"all_gather"`` brings
    all of them to each rank (as Llama 3 was trained: arXiv 2407.21783, section 3.3.2).

    Raises ``ValueError`` with the value and what would do.
    """

    replicate: int = 1
    shard: int = 1
    zero: int = 0
    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 0  # zero: as ``tensor``
    recompute: str = "none"
    recompute_every: int = 1
    recompute_layers: int = 0
    recompute_modules: tuple[str, ...] = ()
    precision: str = "fsdp-bf16"
    offload: str = "none"
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    embedding_in_stages: bool = False  # embedding and loss counted as layers when stages are cut
    context_method: str = "ring"

    def __post_init__(self) -> None:
        for name in (*AXES, "expert", "virtual_stages", "recompute_every"):
            check_positive(f"layout: {name}", getattr(self, name))
        for name in ("expert_tensor", "recompute_layers", "first_stage_layers", "last_stage_layers"):
            check_not_negative(f"layout: {name}", getattr(self, name))
        if not self.expert_tensor:
            object.__setattr__(self, "expert_tensor", self.tensor)
        for name in ("sequence_parallel", "embedding_in_stages"):
            check_kind(f"layout: {name}", getattr(self, name), "bool")
        check_choice("zero stage", self.zero, (0, 1, 2, 3))
        check_kind("layout: zero", self.zero, "int")  # True and 3.0 are equal to a stage, and none
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("recompute", self.recompute, RECOMPUTE)
        check_choice("precision", self.precision, RECIPES)
        check_choice("offload", self.offload, OFFLOAD)
        check_choice("context method", self.context_method, CONTEXT_METHODS)
        for name in self.recompute_modules:
            check_choice("module to recompute", name, RECOMPUTE_MODULES)
        self._check_contradictions()
        if self.virtual_stages > 1 and self.schedule == "1f1b":
            object.__setattr__(self, "schedule", "interleaved")
        ranks, needed = self.world_size // self.pipeline, self.expert * self.expert_tensor
        if self.expert > 1 and ranks % needed:
            raise ValueError(
                f"layout: a pipeline stage has {ranks} ranks, which do not divide by expert = "
                f"{self.expert} times expert_tensor = {self.expert_tensor}"
            )

    def _check_contradictions(self) -> None:
        """Raise ``ValueError`` for fields of which one takes the meaning from another."""
        if self.recompute_modules and self.recompute != "selective":
            raise ValueError(
                f"layout: recompute_modules = {self.recompute_modules} needs recompute = 'selective', not "
                f"{self.recompute!r}"
            )
        # Stage 1 over one rank is a run: Megatron's distributed optimizer with an instance for each replica.
        if self.zero > 1 and self.replicate > self.shard * self.context == 1:
            raise ValueError(
                f"layout: zero = {self.zero} divides state over shard ranks, and shard = 1 is no division; "
                f"use shard = {self.replicate} instead of replicate = {self.replicate}, or zero = 0"
            )
        if self.pipeline == 1:
            self._check_one_stage()
        if self.embedding_in_stages and (self.first_stage_layers or self.last_stage_layers):
            raise ValueError(
                f"layout: embedding_in_stages says how long the ends are, and so do first_stage_layers = "
                f"{self.first_stage_layers} and last_stage_layers = {self.last_stage_layers}; give either"
            )

    def _check_one_stage(self) -> None:
        """Raise ``ValueError`` for what only a pipeline has."""
        if self.virtual_stages > 1:
            raise ValueError(f"layout: virtual_stages = {self.virtual_stages} needs pipeline of at least 2")
        for name in ("first_stage_layers", "last_stage_layers", "embedding_in_stages"):
            if getattr(self, name):
                raise ValueError(
                    f"layout: {name} = {getattr(self, name)} needs pipeline of at least 2: one stage holds "
                    "all layers"
                )
        if self.schedule in FOLDED:
            raise ValueError(
                f"layout: schedule = {self.schedule!r} folds a pipeline and needs pipeline of at least 2; "
                "use '1f1b'"
            )

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return prod(getattr(self, axis) for axis in AXES)

    @property
    def data_parallel(self) -> int:
        """Ranks that see different sequences."""
        return self.replicate * self.shard

    def sizes(self) -> dict[str, int]:
        """Size of each axis, innermost first."""
        return {axis: getattr(self, axis) for axis in AXES}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank sits on every axis."""
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"rank {rank} is not in a world of {self.world_size} (0 to {self.world_size - 1})"
            )
        place = {}
        for axis, size in self.sizes().items():
            rank, place[axis] = divmod(rank, size)
        return place

    def data_rank(self, rank: int) -> int:
        """Which of the ``data_parallel`` shares of a batch a rank sees; ranks that share one say the same."""
        place = self.coordinates(rank)
        return place["replicate"] * self.shard + place["shard"]

    def rank_of(self, place: Mapping[str, int]) -> int:
        """The rank at given coordinates (axes left out count as 0); the inverse of :meth:`coordinates`."""
        rank = 0
        for axis, size in reversed(self.sizes().items()):
            index = place.get(axis, 0)
            if not 0 <= index < size:
                raise ValueError(f"{axis} = {index} is not on an axis of {size} (0 to {size - 1})")
            rank = rank * size + index
        return rank

    def group(self, rank: int, *axes: str) -> tuple[int, ...]:
        """All ranks that differ from ``rank`` only along ``axes``, ascending."""
        for axis in axes:
            check_choice("axis", axis, AXES)
        place = self.coordinates(rank)
        ranges = [range(getattr(self, axis)) for axis in axes]
        return tuple(
            sorted(
                self.rank_of({**place, **dict(zip(axes, index, strict=True))}) for index in product(*ranges)
            )
        )


def usual_engine(layout: Layout, library: str = "torch") -> str:
    """The engine whose layout this is, of those that cut data-parallel training: ddp, fsdp or deepspeed.

    A recipe or implementation of DeepSpeed is DeepSpeed, and an offloaded optimizer, which only it has.
    Else stage 0 is DDP, stage 1 (which FSDP cannot do) DeepSpeed, stages 2 and 3 FSDP.
    """
    if layout.precision.startswith("deepspeed") or library == "deepspeed" or layout.offload == "optimizer":
        return "deepspeed"
    return {0: "ddp", 1: "deepspeed"}.get(layout.zero, "fsdp")


def is_hybrid(layout: Layout) -> bool:
    """Whether states are sharded inside groups and replicated between them, which only FSDP does."""
    return bool(layout.zero) and layout.replicate > 1
