"""An Accelerate YAML read: what it says of a run, as Accelerate itself would take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.configs.given import Given
from workshop.configs.mistakes_fsdp import fsdp_section
from workshop.configs.read_deepspeed import said_by_deepspeed
from workshop.configs.said import Said
from workshop.configs.silent_mistakes import truth
from workshop.facts.checks import check_choice

ENGINE = {"MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "NO": "ddp", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
FSDP1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}


def said_by_accelerate(
    config: Mapping[str, Any], given: Given, deepspeed_file: Mapping[str, Any] | None = None
) -> Said:
    """What the file says.

    Args:
        config: the YAML as a dictionary.
        given: what is known beside it.
        deepspeed_file: content of the JSON that ``deepspeed_config_file`` names.

    Raises
    ------
    ValueError
        ``distributed_type`` is missing, unknown, or one that a `Run` cannot say (TPU, Megatron-LM).
    """
    kind = config.get("distributed_type", "")
    kind = "NO" if kind is False else str(kind)
    check_choice("distributed_type", kind, ENGINE)
    engine = ENGINE[kind]
    ranks = config.get("num_processes")
    common: dict[str, Any] = {"ranks": ranks if isinstance(ranks, int) and ranks > 0 else 0}
    width = config.get("mixed_precision") or ("fp16" if truth(config.get("fp16")) else None)
    common["width"] = "no" if width in (None, False) else str(width)
    check_choice("mixed_precision", common["width"], ("no", "bf16", "fp16"))
    if engine == "fsdp":
        return _fsdp(config, common, given)
    if engine == "deepspeed" and deepspeed_file is not None:
        inside = said_by_deepspeed(deepspeed_file, given)
        return Said(**{**vars(inside), "ranks": common["ranks"] or inside.ranks})
    if engine == "deepspeed":
        return _deepspeed(config.get("deepspeed_config") or {}, common)
    return Said(engine, **common)


def _fsdp(config: Mapping[str, Any], common: dict[str, Any], given: Given) -> Said:
    section, mesh = fsdp_section(config), config.get("parallelism_config") or {}
    notes = []
    if str(section.get("fsdp_version", 1)) == "2":
        zero = 3 if truth(section.get("fsdp_reshard_after_forward", True)) else 2
    else:
        strategy = str(section.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
        numbered = {str(number): name for number, name in enumerate(FSDP1, 1)}
        strategy = numbered.get(strategy, strategy)
        check_choice("fsdp_sharding_strategy", strategy, FSDP1)
        zero = FSDP1[strategy]
        notes.append(f"FSDP1, {strategy}: memory is predicted as FSDP2's")
        if strategy.startswith("HYBRID"):
            notes.append("FSDP1 shards within a node and replicates between nodes: read as sharded over all")
    if given.accumulation > 1:
        notes.append(
            "accelerator.accumulate() lets every rank keep whole gradients between micro-batches, which is "
            "not in the prediction; GradientAccumulationPlugin(sync_each_batch=True) shards them each time"
        )
    offload = "params" if truth(section.get("fsdp_offload_params")) else "none"
    recompute = "full" if truth(section.get("fsdp_activation_checkpointing")) else ""
    if truth(section.get("fsdp_activation_checkpointing_offload")) and recompute:
        offload = "activations" if offload == "none" else offload
    return Said(
        "fsdp" if zero else "ddp",
        zero=zero,
        replicate=int(mesh.get("parallelism_config_dp_replicate_size", 1)),
        offload=offload,
        recompute=recompute,
        notes=tuple(notes),
        **common,
    )


def _deepspeed(section: Mapping[str, Any], common: dict[str, Any]) -> Said:
    stage = int(section.get("zero_stage", 2))
    check_choice("zero_stage", stage, (0, 1, 2, 3))
    steps = section.get("gradient_accumulation_steps")
    return Said(
        "deepspeed",
        zero=stage,
        offload=offload_of(
            stage, section.get("offload_optimizer_device"), section.get("offload_param_device")
        ),
        accumulation=int(str(steps)) if str(steps).isdigit() else 0,
        **common,
    )


def offload_of(stage: int, optimizer: Any, weights: Any) -> str:
    """What really is offloaded: weights at stage 3 only, the optimizer from stage 1 on."""
    if stage == 3 and weights not in (None, "none"):
        return "params"
    return "optimizer" if stage and optimizer not in (None, "none") else "none"
