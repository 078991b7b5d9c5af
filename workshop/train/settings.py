"""How a run is trained: what it is told beside its model and layout, and which engine that makes of it.

All of it is decided before any rank starts, without torch: `Settings` is a frozen table, checked when it is
made, and `check_run` checks it against a run and writes the engine in.

A precision recipe belongs to an engine (`workshop.facts.precision`: they keep different copies), and so a
layout names its engine::

    zero 0   fp32, amp-bf16, amp-fp16, bf16                   plain on one data-parallel rank, else DDP
             fsdp-bf16                                        FSDP2 that replicates and cuts nothing
    zero 1   fp32, deepspeed-bf16, deepspeed-fp16             DeepSpeed
    zero 2   fp32, fsdp-bf16, amp-bf16, bf16                  FSDP2, weights whole from forward to backward
    zero 3   the same                                         FSDP2
    any      deepspeed-bf16, deepspeed-fp16                   DeepSpeed, as for an implementation "deepspeed"
    any      fp32, amp-bf16, deepspeed-bf16 and engine="zero" ZeRO written by hand (workshop.parallel.zero)

What a file for Accelerate or DeepSpeed can say is in `workshop.configs.engines`, and the rules that both
share are taken from there. Two things are more here. FSDP2 in a program of one's own can leave everything
whole, and run fp32 weights under autocast. And a model that is cut by tensor, pipeline or context is this
room's own program (`workshop.train.cut_model`): around it plain, DDP and FSDP2 take the data-parallel axes,
as in torchtitan; the other two want the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from workshop.configs import engines
from workshop.facts.checks import check_choice, check_not_negative, check_positive
from workshop.facts.layout import Layout, is_hybrid, usual_engine
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.pipeline import pipeline_orders
from workshop.predict.pipeline.orders import CLASSIC

ENGINES = ("auto", "plain", "ddp", "zero", "deepspeed", "fsdp")


# ---------------------------------------------------------------------------- the learning rate

WSD_DECAY = 0.2
"""Share of the steps over which ``wsd`` falls."""

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
    "wsd": lambda done: min(1.0, (1 - done) / WSD_DECAY),
}


@dataclass(frozen=True)
class Schedule:
    """``schedule(step)`` is the learning rate of that step: a function of the step, and of nothing else.

    A scheduler that counts its own calls has a state to save and can fall out of step with the data. A
    function of the step's number cannot: to resume is to call it with the next number.

    ``cosine`` warms up in a line and then falls along half a cosine (Loshchilov and Hutter 2016, arXiv
    1608.03983, equation 5); ``linear`` falls in a line; ``wsd`` stays and falls in a line over its last fifth
    (warmup-stable-decay, Hu et al. 2024, arXiv 2404.06395, section 4.2); ``constant`` only warms up.

    Args:
        peak: the highest rate.
        name: the shape after warm-up: constant, cosine, linear or wsd.
        num_steps: steps of the whole training.
        warmup: steps in which the rate rises from ``peak / warmup`` to the peak.
        floor: the lowest rate, as a share of the peak.

    Raises ValueError for an unknown shape, and where warm-up leaves no step.
    """

    peak: float
    name: str = "constant"
    num_steps: int = 1
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_choice("schedule", self.name, _SHAPES)
        check_positive("num_steps", self.num_steps)
        check_not_negative("warmup", self.warmup)
        if self.name != "constant" and self.warmup >= self.num_steps:
            raise ValueError(f"warmup of {self.warmup} steps leaves nothing of {self.num_steps}")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor = {self.floor} is a share of the peak: between 0 and 1")

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.num_steps - self.warmup))
        return self.peak * (self.floor + (1 - self.floor) * _SHAPES[self.name](done))


# ---------------------------------------------------------------------------- the settings


@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        num_steps: optimizer steps in all.
        optimizer, learning_rate, weight_decay: see `optimizers.build_optimizers`.
        schedule, warmup: see `Schedule`.
        clip_norm: the gradient's norm is cut to this; 0 leaves it.
        engine: which library shards; "auto" takes the one that the layout's stage and precision belong to.
            "zero" is the version written by hand (`parallel.zero`).
        compile: a backend of torch.compile, such as "inductor", for every layer; "" compiles nothing.
        seed: of the weights and of the data's order.
        log, log_every: see `log.open_log`; a line every so many steps.
        save_every, keep: a checkpoint every so many steps (0: none), of which so many are kept.

    Raises ValueError for values that cannot be.
    """

    num_steps: int = 20
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup: int = 0
    clip_norm: float = 1.0
    engine: str = "auto"
    compile: str = ""
    seed: int = 0
    log: str = "jsonl"
    log_every: int = 10
    save_every: int = 0
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("num_steps", "log_every", "keep"):
            check_positive(name, getattr(self, name))
        for name in ("warmup", "save_every"):
            check_not_negative(name, getattr(self, name))
        for name in ("learning_rate", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be zero or more, not {getattr(self, name)!r}")
        check_choice("engine", self.engine, ENGINES)
        self.rates()

    def rates(self) -> Schedule:
        """The learning rate of every step."""
        return Schedule(self.learning_rate, self.schedule, self.num_steps, self.warmup)


# ---------------------------------------------------------------------------- the engine

_DDP = tuple(engines.MIXED_PRECISION["ddp"])
RECIPES: dict[str, tuple[str, ...]] = {
    "plain": _DDP,
    "ddp": _DDP,
    "zero": ("fp32", "amp-bf16", "deepspeed-bf16"),
    "deepspeed": tuple(engines.MIXED_PRECISION["deepspeed"]),
    "fsdp": (*engines.MIXED_PRECISION["fsdp"], "amp-bf16"),
}
"""Precision recipes that each engine trains in."""
STAGES: dict[str, tuple[int, ...]] = {
    **engines.STAGES,
    "plain": (0,),
    "zero": (0, 1, 2, 3),
    "fsdp": (0, *engines.STAGES["fsdp"]),
}
OFFLOADS: dict[str, tuple[str, ...]] = {
    **engines.OFFLOADS,
    "plain": ("none", "activations"),
    "ddp": ("none", "activations"),
    "zero": ("none",),
}
CUTTABLE = ("plain", "ddp", "fsdp")
"""Engines around a model that is cut by tensor, pipeline or context."""
FLAT = ("sgd", "sgd-momentum", "lion", "adam", "adamw")
"""Optimizers that treat every number alike, and so may work on any part of a matrix or a flat tensor."""
MODEL_AXES = ("tensor", "pipeline", "context")


def is_cut(layout: Layout) -> bool:
    """Whether the model itself is cut, not only the batch and the states."""
    return any(getattr(layout, axis) > 1 for axis in MODEL_AXES)


def choose_engine(layout: Layout, wanted: str = "auto", library: str = "torch") -> str:
    """The engine for a layout; ValueError with every reason against it.

    ``wanted``: of `Settings`; ``library``: the name of the run's implementation, of which "deepspeed" counts.
    """
    if layout.expert > 1:
        raise ValueError(
            f"layout: expert = {layout.expert}: train() does not deal out experts to ranks; cut_experts of "
            "workshop.parallel.expert does it to a model of workshop.models.moe. Use expert = 1"
        )
    engine = _usual_engine(layout, library) if wanted == "auto" else wanted
    against = _against(layout, engine) + (_against_cuts(layout, engine) if is_cut(layout) else [])
    if against:
        raise ValueError(f"{engine} cannot train this layout:\n- " + "\n- ".join(against))
    return engine


def check_run(run: Run, settings: Settings) -> Settings:
    """The settings with the engine that the run gets; ValueError with every reason why it cannot train."""
    layout = run.layout
    engine = choose_engine(layout, settings.engine, run.implementation.name)
    reasons = cut_problems(run.model, layout) if is_cut(layout) else []
    reasons += optimizer_problems(settings, engine, layout)
    if run.document_len:
        reasons.append(
            f"document_len = {run.document_len}: train() packs no documents; it would be one mask a sequence"
        )
    if reasons:
        raise ValueError("train() cannot do this run:\n- " + "\n- ".join(reasons))
    if layout.pipeline > 1:
        pipeline_orders(layout.schedule, layout.pipeline, run.accumulation, layout.virtual_stages)
    return replace(settings, engine=engine)


def _usual_engine(layout: Layout, library: str) -> str:
    usual = usual_engine(layout, library)
    if usual != "deepspeed" and layout.precision.startswith("fsdp"):
        return "fsdp"
    if usual == "ddp" and layout.data_parallel * layout.context == 1:
        return "plain"
    return usual


def _against(layout: Layout, engine: str) -> list[str]:
    """Every reason why an engine cannot do a layout, with what would do."""
    reasons = []
    if layout.precision not in RECIPES[engine]:
        others = [name for name, recipes in RECIPES.items() if layout.precision in recipes]
        whose = f"it is {' and '.join(others)}'s" if others else "no engine here trains in it yet"
        reasons.append(
            f"precision {layout.precision!r}: {whose}; {engine} trains in {', '.join(RECIPES[engine])}"
        )
    if layout.zero not in STAGES[engine]:
        stages = ", ".join(map(str, STAGES[engine]))
        reasons.append(
            f"zero = {layout.zero}: {engine} does stage {stages} (engine='zero' or 'deepspeed': all)"
        )
    if layout.offload not in OFFLOADS[engine]:
        reasons.append(f"offload {layout.offload!r}: {engine} knows {', '.join(OFFLOADS[engine])}")
    elif engine == "deepspeed":
        reasons += engines.deepspeed_offload_problems(layout)
    ranks = layout.data_parallel * layout.context
    if engine == "plain" and ranks > 1:
        reasons.append(f"{ranks} ranks that share a batch: plain averages no gradients; ddp does")
    if engine in ("zero", "deepspeed") and is_hybrid(layout):
        reasons.append(
            f"replicate = {layout.replicate} beside shard = {layout.shard}: only fsdp shards inside groups "
            f"and replicates between them; {engine} takes Layout(shard={layout.data_parallel})"
        )
    return reasons


def _against_cuts(layout: Layout, engine: str) -> list[str]:
    """Every reason why an engine cannot train a model that is cut so."""
    cuts = ", ".join(f"{axis} = {getattr(layout, axis)}" for axis in MODEL_AXES if getattr(layout, axis) > 1)
    reasons = []
    if engine not in CUTTABLE:
        reasons.append(
            f"{cuts}: {engine} wants the whole model; use zero = 0 (ddp), 2 or 3 (fsdp) with precision fp32"
        )
    if layout.precision == "amp-fp16":
        reasons.append(
            f"precision 'amp-fp16' with {cuts}: every rank would have to skip the same steps; use 'amp-bf16'"
        )
    if layout.offload == "params":
        reasons.append(f"offload 'params' with {cuts}: weights of a cut model stay on the device; use 'none'")
    if layout.pipeline > 1 and layout.schedule not in CLASSIC:
        reasons.append(f"schedule {layout.schedule!r}: train() runs {', '.join(CLASSIC)}")
    if layout.context > 1 and layout.context_method == "all_gather":
        reasons.append(
            "context_method 'all_gather': train() hands keys on ('ring') or trades heads ('ulysses')"
        )
    if layout.pipeline > 1 and layout.embedding_in_stages:
        reasons.append("embedding_in_stages: every stage here has a layer; use first_stage_layers")
    return reasons


def cut_problems(model: ModelSpec, layout: Layout) -> list[str]:
    """What of a model does not divide; whatever `workshop.facts.fitting` has not refused with the run."""
    reasons, t = [], layout.tensor
    if model.is_moe:
        reasons.append(f"{model.name} has experts: train() cuts no mixture; shard or replicate the batch")
    if model.num_kv_heads % t:
        reasons.append(
            f"num_kv_heads = {model.num_kv_heads} does not divide by tensor = {t}: a rank gets whole heads"
        )
    if model.vocab_size % t:
        reasons.append(
            f"vocab_size = {model.vocab_size} does not divide by tensor = {t}: the embedding is cut by words"
        )
    return reasons


def optimizer_problems(settings: Settings, engine: str, layout: Layout) -> list[str]:
    """Why an optimizer cannot train what a rank of this engine and layout holds; empty where it can."""
    name, reasons = settings.optimizer, []
    if name not in FLAT and (is_cut(layout) or engine == "zero"):
        parts = "a rank of a cut model has parts" if is_cut(layout) else "ZeRO by hand cuts flat tensors"
        flat = ", ".join(FLAT)
        reasons.append(f"optimizer {name!r} looks at whole matrices, and {parts}: use one of {flat}")
    elif name == "adafactor" and engine == "fsdp":
        reasons.append("torch's Adafactor does not take sharded weights: use lion (one moment), or DDP")
    if settings.weight_decay and engine == "zero":
        reasons.append(
            f"weight_decay = {settings.weight_decay}: ZeRO by hand joins matrices and vectors in one flat "
            "tensor and would decay both; use 0, or engine 'fsdp' or 'deepspeed'"
        )
    return reasons
