"""A DeepSpeed JSON read: what it says of a run, as DeepSpeed itself would take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.configs.given import Given
from workshop.configs.mistakes_deepspeed import enabled, numbers_of_batch
from workshop.configs.said import Said
from workshop.facts.checks import check_choice

OPTIMIZERS = {"adamw": "adamw", "lion": "lion", "muon": "muon", "onebitadam": "adam", "zerooneadam": "adam"}


def said_by_deepspeed(config: Mapping[str, Any], given: Given) -> Said:
    """What the file says; ``"auto"`` counts as not said.

    Raises
    ------
    ValueError
        A ZeRO stage that does not exist, or both 16-bit widths at once.
    """
    section = config.get("zero_optimization") or {}
    stage, notes = section.get("stage", 0), []
    check_choice("zero_optimization.stage", stage, (0, 1, 2, 3))
    total, micro, steps = numbers_of_batch(config)
    if not steps and not (total and micro) and config.get("gradient_accumulation_steps") != "auto":
        steps = 1
    name = str((config.get("optimizer") or {}).get("type", "")).lower()
    params = (config.get("optimizer") or {}).get("params") or {}
    if name == "adam":
        optimizer = "adamw" if params.get("adam_w_mode", True) else "adam"
    else:
        optimizer = OPTIMIZERS.get(name, "")
    if name and not optimizer:
        notes.append(f"optimizer {name!r} is not one whose memory is known; give optimizer")
    ranks = total // (micro * steps) if total and micro and steps else 0
    if given.num_processes and ranks and ranks != given.num_processes:
        raise ValueError(
            f"train_batch_size {total} is {micro} a GPU times {steps} steps on {ranks} ranks, not on "
            f"{given.num_processes}: there DeepSpeed stops"
        )
    return Said(
        "deepspeed",
        ranks=ranks,
        zero=stage,
        width=_width(config),
        offload=_offload(section, stage),
        accumulation=steps,
        micro_batch=micro,
        global_batch=total,
        optimizer=optimizer,
        notes=tuple(notes),
    )


def _width(config: Mapping[str, Any]) -> str:
    half, brain = enabled(config, "fp16"), enabled(config, "bf16")
    if half is True and brain is True:
        raise ValueError("fp16 and bf16 are both on: DeepSpeed stops; keep one")
    if half is True or brain is True:
        return "bf16" if brain is True else "fp16"
    return "" if "auto" in (half, brain) else "no"


def _offload(section: Mapping[str, Any], stage: int) -> str:
    def away(name: str) -> bool:
        return (section.get(name) or {}).get("device", "none") not in ("none", "auto")

    if stage == 3 and away("offload_param"):
        return "params"
    return "optimizer" if stage and away("offload_optimizer") else "none"
