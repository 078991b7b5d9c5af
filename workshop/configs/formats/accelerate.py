"""An Accelerate YAML read: what it says of a run, as Accelerate itself would take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.configs.formats.deepspeed import parse_deepspeed
from workshop.configs.known_keys import (
    DISTRIBUTED_TYPES,
    MIXED_PRECISION,
    MULTI_DEVICE,
    SHARDING_STRATEGIES,
)
from workshop.configs.mistakes.fsdp import fsdp_section
from workshop.configs.mistakes.mesh import mesh_sizes
from workshop.configs.mistakes.mistake import table_at, truth, whole_number
from workshop.configs.overrides import Overrides
from workshop.configs.parsed import ParsedConfig
from workshop.facts.checks import check_choice

ENGINES = {
    "FSDP": "fsdp",
    "DEEPSPEED": "deepspeed",
    **dict.fromkeys(("NO", "MULTI_CPU", *MULTI_DEVICE), "ddp"),
}
NOT_MODELLED = {
    "XLA": "distributed_type XLA: TPUs are not in the catalogue of devices",
    "MEGATRON_LM": "distributed_type MEGATRON_LM: give Megatron-LM's own arguments instead",
}
FSDP1_STAGES = dict(zip(SHARDING_STRATEGIES, (3, 2, 0, 3, 2), strict=True))


def parse_accelerate(
    config: Mapping[str, Any], overrides: Overrides, deepspeed_file: Mapping[str, Any] | None = None
) -> ParsedConfig:
    """What the file says.

    Args:
        config: the YAML as a dictionary.
        overrides: what is known beside it.
        deepspeed_file: content of the JSON that ``deepspeed_config_file`` names.

    Raises:
        ValueError: ``distributed_type`` is missing or unknown, or another choice does not exist.
    """
    if config.get("compute_environment") == "AMAZON_SAGEMAKER":
        raise ValueError(
            "compute_environment is AMAZON_SAGEMAKER: its files have keys of their own, and are not read here"
        )
    kind = config.get("distributed_type", "")
    kind = "NO" if kind is False else str(kind)
    check_choice("distributed_type", kind, DISTRIBUTED_TYPES)
    if kind in NOT_MODELLED:
        return ParsedConfig(kind.lower().replace("_", "-"), not_modelled=(NOT_MODELLED[kind],))
    engine = ENGINES[kind]
    common = _common(config)
    if engine == "fsdp":
        return _fsdp(config, common, overrides)
    if engine == "deepspeed" and deepspeed_file is not None:
        inside = parse_deepspeed(deepspeed_file, overrides.with_ranks(common["ranks"]))
        return ParsedConfig(**{**vars(inside), "ranks": common["ranks"] or inside.ranks, **_sequence(config)})
    if engine == "deepspeed":
        return _deepspeed(config, common)
    return ParsedConfig(engine, **common)


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks and width."""
    ranks = whole_number(config.get("num_processes")) or 0
    width = config.get("mixed_precision") or ("fp16" if truth(config.get("fp16")) else "no")
    width = str(width).lower()
    check_choice("mixed_precision", width, MIXED_PRECISION)
    if width != "fp8":
        return {"ranks": ranks, "width": width}
    section = table_at(config, "fp8_config")
    backend = str(section.get("fp8_backend") or section.get("backend") or "").upper()
    return {"ranks": ranks, "width": f"fp8 by {backend}" if backend else "fp8"}


def _fsdp(config: Mapping[str, Any], common: dict[str, Any], overrides: Overrides) -> ParsedConfig:
    section, mesh = fsdp_section(config), mesh_sizes(config)
    notes = []
    if str(section.get("fsdp_version", 1)) == "2":
        zero = 3 if truth(section.get("fsdp_reshard_after_forward", True)) else 2
    else:
        strategy = str(section.get("fsdp_sharding_strategy", "FULL_SHARD")).upper()
        numbered = {str(number): name for number, name in enumerate(FSDP1_STAGES, 1)}
        strategy = numbered.get(strategy, strategy)
        check_choice("fsdp_sharding_strategy", strategy, FSDP1_STAGES)
        zero = FSDP1_STAGES[strategy]
        notes.append(f"FSDP1, {strategy}: memory is predicted as FSDP2's")
        if strategy.startswith("HYBRID"):
            notes.append("FSDP1 shards within a node and replicates between nodes: read as sharded over all")
    if overrides.accumulation > 1:
        notes.append(
            "accelerator.accumulate() lets every rank keep whole gradients between micro-batches, which is "
            "not in the prediction; GradientAccumulationPlugin(sync_each_batch=True) shards them each time"
        )
    offload = "params" if truth(section.get("fsdp_offload_params")) else "none"
    recompute = "full" if truth(section.get("fsdp_activation_checkpointing")) else ""
    if truth(section.get("fsdp_activation_checkpointing_offload")) and recompute:
        offload = "activations" if offload == "none" else offload
    cut = f"tp_size {mesh['tp']}: Accelerate 1.15 does not cut a model by it"
    return ParsedConfig(
        "fsdp" if zero else "ddp",
        zero=zero,
        replicate=mesh["dp_replicate"] or 1,
        context=mesh["cp"] or 1,
        offload=offload,
        recompute=recompute,
        notes=tuple(notes),
        not_modelled=(cut,) if mesh["tp"] > 1 else (),
        **common,
    )


def _deepspeed(config: Mapping[str, Any], common: dict[str, Any]) -> ParsedConfig:
    section = table_at(config, "deepspeed_config")
    stage = whole_number(section.get("zero_stage", 2))
    check_choice("zero_stage", stage, (0, 1, 2, 3))
    devices = (section.get("offload_optimizer_device"), section.get("offload_param_device"))
    assert stage is not None, "check_choice has looked"
    return ParsedConfig(
        "deepspeed",
        zero=stage,
        offload=offload_of(stage, *devices),
        accumulation=whole_number(section.get("gradient_accumulation_steps")) or 0,
        **_sequence(config),
        **common,
    )


def _sequence(config: Mapping[str, Any]) -> dict[str, Any]:
    """Ulysses under DeepSpeed: ``sp_size`` ranks share a sequence."""
    size = mesh_sizes(config)["sp"]
    if size < 2:
        return {}
    note = (
        f"sp_size {size}: memory is that of a sequence cut {size} ways; traffic is predicted as a ring's, "
        "not as Ulysses'"
    )
    return {"context": size, "notes": (note,)}


def offload_of(stage: int, optimizer: Any, weights: Any) -> str:
    """What really is offloaded: weights at stage 3 only, the optimizer from stage 1 on."""
    if stage == 3 and weights not in (None, "none"):
        return "params"
    return "optimizer" if stage and optimizer not in (None, "none") else "none"
