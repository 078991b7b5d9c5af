"""Which engine trains a layout, and what each refuses: decided before any rank starts, without torch.

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

from dataclasses import replace

from workshop.configs import engines
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.pipeline import pipeline_orders
from workshop.predict.pipeline.orders import CLASSIC
from workshop.train.settings import Settings

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
    usual = engines.usual_engine(layout, library)
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
    if engine in ("zero", "deepspeed") and engines.is_hybrid(layout):
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
