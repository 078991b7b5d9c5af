"""Which engine can do what a run asks for.

Three engines cut data-parallel training, and they overlap::

    ddp        nothing is cut                                           zero = 0
    fsdp       weights, gradients and optimizer state (FSDP2)           zero = 3; zero = 2 keeps the weights
                                                                        whole between forward and backward
    deepspeed  what the ZeRO stage says                                 zero = 0, 1, 2, 3

(Li et al. 2020, arXiv 2006.15704; Zhao et al. 2023, arXiv 2304.11277; Rajbhandari et al. 2020, arXiv
1910.02054.) They also differ in what they keep of a parameter, which is why a `Precision` recipe belongs to
an engine: under "mixed precision bf16" DDP and FSDP2 keep fp32 weights, DeepSpeed keeps bf16 ones and an fp32
copy. A run whose recipe is another engine's is refused: its predicted memory would be another program's.
"""

from __future__ import annotations

from workshop.facts.checks import check_choice
from workshop.facts.layout import Layout, is_hybrid, usual_engine
from workshop.facts.run import Run

ENGINES = ("ddp", "fsdp", "deepspeed")

MIXED_PRECISION = {
    "ddp": {"fp32": "no", "amp-bf16": "bf16", "amp-fp16": "fp16", "bf16": "no"},
    "fsdp": {"fp32": "no", "fsdp-bf16": "bf16", "bf16": "no"},
    "deepspeed": {"fp32": "no", "deepspeed-bf16": "bf16", "deepspeed-fp16": "fp16"},
}
"""For each engine, the recipes it trains in, and Accelerate's ``mixed_precision`` for each.

``bf16`` (everything in 16 bits, no copy) is said in the script, which loads the model so; the file says no.
"""

STAGES = {"ddp": (0,), "fsdp": (2, 3), "deepspeed": (0, 1, 2, 3)}
OFFLOADS = {
    "ddp": ("none",),
    "fsdp": ("none", "params", "activations"),
    "deepspeed": ("none", "optimizer", "params"),
}


def engine_of(run: Run) -> str:
    """The engine a run asks for: by its precision recipe or implementation, else by its ZeRO stage.

    See `workshop.facts.layout.usual_engine`.
    """
    return usual_engine(run.layout, run.implementation.name)


def chosen_engine(run: Run, engine: str | None) -> str:
    """``engine``, or the run's own; ValueError says everything that stands against it, and what would do."""
    engine = engine or engine_of(run)
    check_choice("engine", engine, ENGINES)
    problems = _cut_problems(run.layout, engine) + _state_problems(run.layout, engine)
    if problems:
        raise ValueError(f"{engine} cannot do this run:\n- " + "\n- ".join(problems))
    return engine


def _cut_problems(layout: Layout, engine: str) -> list[str]:
    """Cuts that no configuration file of these engines can say, or not this one's."""
    problems = [
        f"{axis} = {getattr(layout, axis)}: these engines cut the batch and the states; a model that is cut "
        f"by {axis} needs a program that does so (torchtitan, Megatron-LM). Use {axis} = 1"
        for axis in ("tensor", "context", "pipeline", "expert")
        if getattr(layout, axis) > 1
    ]
    if layout.zero not in STAGES[engine]:
        stages = " or ".join(map(str, STAGES[engine]))
        others = [name for name in ENGINES if layout.zero in STAGES[name]]
        problems.append(
            f"zero = {layout.zero}: {engine} does stage {stages}; stage {layout.zero} is done by "
            f"{' and '.join(others)}"
        )
    if engine == "deepspeed" and is_hybrid(layout):
        problems.append(
            f"replicate = {layout.replicate}: DeepSpeed shards over all ranks; use replicate = 1 and "
            f"shard = {layout.data_parallel}, or engine fsdp, which has hybrid sharding"
        )
    return problems


def _state_problems(layout: Layout, engine: str) -> list[str]:
    """Precision and offload: what is kept of a parameter, and where."""
    problems = []
    if layout.precision not in MIXED_PRECISION[engine]:
        known = ", ".join(MIXED_PRECISION[engine])
        problems.append(f"precision = {layout.precision!r} is not {engine}'s; it trains in {known}")
    if layout.offload not in OFFLOADS[engine]:
        known = ", ".join(OFFLOADS[engine])
        problems.append(f"offload = {layout.offload!r} is not {engine}'s; it has {known}")
    elif layout.offload == "activations" and layout.recompute != "full":
        problems.append(
            'offload = "activations" moves the inputs of recomputed layers: add recompute = "full"'
        )
    elif engine == "deepspeed":
        problems += deepspeed_offload_problems(layout)
    return problems


def deepspeed_offload_problems(layout: Layout) -> list[str]:
    """What DeepSpeed offloads only in some stages."""
    if layout.offload == "params" and layout.zero != 3:
        return [f'zero = {layout.zero} with offload = "params": only stage 3 offloads weights']
    if layout.offload == "optimizer" and not layout.zero:
        return ['zero = 0 with offload = "optimizer": only stages 1 to 3 offload the optimizer']
    return []


def layout_of(engine: str, zero: int, ranks: int, replicate: int = 1) -> dict[str, int]:
    """``replicate``, ``shard`` and ``zero`` of an engine's ranks: stage 0 replicates, others shard."""
    if zero == 0 or engine == "ddp":
        return {"replicate": ranks, "shard": 1, "zero": 0}
    return {"replicate": replicate, "shard": ranks // replicate, "zero": zero}
