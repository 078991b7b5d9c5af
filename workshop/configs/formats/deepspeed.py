"""A DeepSpeed JSON read: what it says of a run, as DeepSpeed itself would take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.configs.mistakes.deepspeed import (
    enabled,
    numbers_of_batch,
    offload_device,
    zero_section,
    zero_stage,
)
from workshop.configs.mistakes.mistake import table_at, truth, whole_number
from workshop.configs.overrides import Overrides
from workshop.configs.parsed import ParsedConfig
from workshop.facts.checks import check_choice

OPTIMIZERS = {"adamw": "adamw", "lion": "lion", "muon": "muon", "onebitadam": "adam", "zerooneadam": "adam"}


def parse_deepspeed(config: Mapping[str, Any], overrides: Overrides) -> ParsedConfig:
    """What the file says; ``"auto"`` counts as not said.

    Raises:
        ValueError: A ZeRO stage that does not exist, both 16-bit widths at once, or a batch that is another
            number of ranks'.
    """
    section = zero_section(config)
    stage, notes = zero_stage(section), []
    if stage is None:
        check_choice("zero_optimization.stage", section.get("stage"), (0, 1, 2, 3))
    if section.get("stage") == "auto":  # Accelerate's own setting, 2 by default
        stage = 2
        notes.append('zero_optimization.stage is "auto": read as 2, which Accelerate fills in by default')
    total, micro, steps = numbers_of_batch(config)
    if not steps and not (total and micro) and config.get("gradient_accumulation_steps") != "auto":
        steps = 1
    optimizer = _optimizer(config, notes)
    tensor = whole_number(table_at(config, "tensor_parallel").get("autotp_size")) or 1
    context = whole_number(config.get("sequence_parallel_size")) or 1
    if tensor > 1:
        notes.append("AutoTP: read as tensor parallelism, with sequences whole on each rank")
    ranks = total // (micro * steps) * tensor * context if total and micro and steps else 0
    if overrides.num_processes and ranks and ranks != overrides.num_processes:
        raise ValueError(
            f"train_batch_size {total} is {micro} a GPU times {steps} steps on {ranks} ranks, not on "
            f"{overrides.num_processes}: there DeepSpeed stops"
        )
    return ParsedConfig(
        "deepspeed",
        ranks=ranks,
        zero=stage or 0,
        tensor=tensor,
        context=context,
        width=_width(config),
        offload=_offload(section, stage or 0),
        accumulation=steps,
        micro_batch=micro,
        global_batch=total,
        optimizer=optimizer,
        notes=tuple(notes),
        not_modelled=tuple(_not_modelled(config, section)),
    )


def _optimizer(config: Mapping[str, Any], notes: list[str]) -> str:
    """The optimizer by the name it has here; "" where none is said, or one that nobody here knows."""
    name = str(table_at(config, "optimizer").get("type", "")).lower()
    if name == "adam":
        return "adamw" if table_at(config, "optimizer.params").get("adam_w_mode", True) else "adam"
    if name and name not in OPTIMIZERS:
        notes.append(f"optimizer {name!r} is not one whose memory is known; give optimizer")
    return OPTIMIZERS.get(name, "")


def _not_modelled(config: Mapping[str, Any], section: Mapping[str, Any]) -> list[str]:
    """Settings that change what is kept or sent, and that no prediction here knows."""
    states = table_at(section, "offload_optimizer")
    changes = {
        "zero_optimization.zero_hpz_partition_size": (
            whole_number(section.get("zero_hpz_partition_size")) or 1
        )
        > 1,
        "zero_optimization.zero_quantized_weights": truth(section.get("zero_quantized_weights")),
        "zero_optimization.zero_quantized_nontrainable_weights": truth(
            section.get("zero_quantized_nontrainable_weights")
        ),
        "zero_optimization.zero_quantized_gradients": truth(section.get("zero_quantized_gradients")),
        "zero_optimization.zenflow": bool(section.get("zenflow")),
        "zero_optimization.offload_optimizer.ratio": states.get("ratio", 1.0) not in (1, 1.0, "auto"),
        "zero_optimization.offload_optimizer.super_offload": truth(states.get("super_offload")),
        "bf16.bf16_master_weights_and_grads": truth(
            table_at(config, "bf16").get("bf16_master_weights_and_grads")
        ),
        "fp16.fp16_master_weights_and_grads": truth(
            table_at(config, "fp16").get("fp16_master_weights_and_grads")
        ),
        "torch_autocast": truth(table_at(config, "torch_autocast").get("enabled")),
        "data_types.grad_accum_dtype": table_at(config, "data_types").get("grad_accum_dtype") is not None,
        "data_types.param_dtype": table_at(config, "data_types").get("param_dtype") is not None,
        "expert_parallel": bool(table_at(config, "expert_parallel")),
        "hybrid_engine": truth(table_at(config, "hybrid_engine").get("enabled")),
    }
    return [f"{key}: it changes what a rank keeps or sends" for key, is_on in changes.items() if is_on]


def _width(config: Mapping[str, Any]) -> str:
    half, brain = enabled(config, "fp16"), enabled(config, "bf16")
    if half is True and brain is True:
        raise ValueError("fp16 and bf16 are both on: DeepSpeed stops; keep one")
    if half is True or brain is True:
        return "bf16" if brain is True else "fp16"
    return "" if "auto" in (half, brain) else "no"


def _offload(section: Mapping[str, Any], stage: int) -> str:
    if stage == 3 and offload_device(section, "param") != "none":
        return "params"
    return "optimizer" if stage and offload_device(section, "optimizer") != "none" else "none"
