"""What goes wrong with a DeepSpeed JSON: the batch, the width, what is read by nobody, what cannot be saved.

Sources, where not seen by trial: github deepspeedai/DeepSpeed, deepspeed/runtime/config.py,
runtime/config_utils.py (``auto`` is dropped where nobody fills it), runtime/engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.given import Given
from workshop.configs.known_keys import DEEPSPEED, DEEPSPEED_REMOVED, ZERO
from workshop.configs.onebit import NAMES as ONEBIT
from workshop.configs.silent_mistakes import Mistake, misspelt, truth
from workshop.facts.checks import nearest

Config = Mapping[str, Any]
TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def deepspeed_mistakes(config: Config, given: Given) -> list[Mistake]:
    """Everything found wrong, in the order of the file's own logic."""
    rules = (_keys, _width, _clipping, _zero, _optimizer, _recompute)
    found = [mistake for rule in rules for mistake in rule(config)]
    return [*_batch(config, given.num_processes), *found]


def _keys(config: Config) -> Iterator[Mistake]:
    known = {key: value for key, value in config.items() if key not in DEEPSPEED_REMOVED}
    yield from misspelt(known, "", DEEPSPEED)
    for key in DEEPSPEED_REMOVED:
        if key in config:
            yield Mistake(
                key, "stops", "DeepSpeed 0.19 has dropped this", "take it out, or use an older version"
            )
    for key in config.get("zero_optimization") or {}:
        if key not in ZERO:
            told = f"DeepSpeed knows no such key{nearest(key, ZERO)}"
            yield Mistake(f"zero_optimization.{key}", "stops", told, "correct it or take it out")


def numbers_of_batch(config: Config) -> list[int]:
    """The three numbers, 0 for one that is missing or ``auto``."""
    return [value if isinstance(value := config.get(key), int) else 0 for key in TRIPLE]


def _batch(config: Config, ranks: int) -> Iterator[Mistake]:
    total, micro, steps = numbers_of_batch(config)
    if total and micro and total % (micro * (steps or 1)):
        told = f"{total} does not divide by {micro} a GPU" + (f" times {steps} steps" if steps else "")
        yield Mistake("train_batch_size", "stops", told, f"a multiple of {micro * (steps or 1)}")
    elif ranks and total and micro and total != micro * (steps or max(1, total // micro // ranks)) * ranks:
        steps = steps or max(1, total // micro // ranks)
        yield Mistake(
            "train_batch_size",
            "stops",
            f"{total} is not {micro} a GPU times {steps} steps times {ranks} ranks = {micro * steps * ranks}",
            f"train_batch_size: {micro * steps * ranks}, or leave it out",
        )
    if not total and not micro and not any(config.get(key) == "auto" for key in TRIPLE[:2]):
        told = "neither train_batch_size nor train_micro_batch_size_per_gpu is there"
        yield Mistake("train_micro_batch_size_per_gpu", "stops", told, "say what one GPU takes at once")


def enabled(config: Config, width: str) -> Any:
    """``True``, ``False`` or ``"auto"``: whether a 16-bit width is switched on."""
    section = config.get(width)
    if section is None and width == "bf16":
        section = config.get("bfloat16")
    value = (section or {}).get("enabled", False)
    return "auto" if value == "auto" else truth(value)


def _width(config: Config) -> Iterator[Mistake]:
    half, brain = enabled(config, "fp16"), enabled(config, "bf16")
    if half is True and brain is True:
        yield Mistake("fp16.enabled", "stops", "fp16 and bf16 are both on", "keep bf16, where the GPU has it")
    elif "auto" in (half, brain):
        yield Mistake(
            "bf16.enabled" if brain == "auto" else "fp16.enabled",
            "silent",
            '"auto" is filled in by Trainer or Accelerate; deepspeed.initialize drops it and trains in fp32',
            "true or false, unless Trainer or Accelerate reads this file",
        )
    elif not half and not brain and "torch_autocast" not in config:
        told = "neither bf16 nor fp16 is on: everything is computed in fp32"
        yield Mistake("bf16.enabled", "costly", told, '"bf16": {"enabled": true}')
    for width in ("fp16", "bf16"):
        if isinstance(config.get(width), Mapping) and config[width] and "enabled" not in config[width]:
            yield Mistake(
                f"{width}.enabled", "silent", "the section is there, but not switched on", "enabled: true"
            )


def _clipping(config: Config) -> Iterator[Mistake]:
    clip = config.get("gradient_clipping")
    if clip is None:
        yield Mistake(
            "gradient_clipping",
            "silent",
            "without this key DeepSpeed 0.19 clips gradients at norm 1.0 (earlier versions did not clip)",
            "write the norm you want; 0 where you want none",
        )
    elif clip == "auto":
        told = '"auto" becomes 1.0 under Accelerate, max_grad_norm under Trainer'
        yield Mistake("gradient_clipping", "silent", told, "write the norm you want")


def _zero(config: Config) -> Iterator[Mistake]:
    section = config.get("zero_optimization") or {}
    if not section:
        told = "without this section there is no ZeRO (stage 0), and Accelerate refuses the file"
        yield Mistake("zero_optimization", "costly", told, '"zero_optimization": {"stage": ...}')
        return
    stage = section.get("stage", 0)
    stage = stage if isinstance(stage, int) else 0
    for what, least in (("param", 3), ("optimizer", 1)):
        device = (section.get(f"offload_{what}") or {}).get("device", "none")
        if device not in ("none", "auto") and stage < least:
            from_on = "" if least == 3 else " and above"
            told = f"{device} at stage {stage}: only stage {least}{from_on} offloads it"
            yield Mistake(f"zero_optimization.offload_{what}", "silent", told, f'"stage": {least}')
    idle = [key for key in section if key.startswith("stage3_")] if stage != 3 else []
    if idle:
        told = f"stage is {stage}: {', '.join(idle)} has no effect"
        yield Mistake(f"zero_optimization.{idle[0]}", "silent", told, '"stage": 3, or take it out')
    if stage == 3 and not truth(section.get("stage3_gather_16bit_weights_on_model_save")):
        yield Mistake(
            "zero_optimization.stage3_gather_16bit_weights_on_model_save",
            "stops",
            "training works, and at its end save_16bit_model and accelerator.get_state_dict give nothing: no "
            "rank has the weights",
            "true",
        )


def _optimizer(config: Config) -> Iterator[Mistake]:
    section = config.get("optimizer") or {}
    name, params = str(section.get("type", "")), section.get("params") or {}
    if name in ONEBIT:
        cure = "a DeepSpeed before 0.19, or lesson 27_fewer_bytes"
        yield Mistake("optimizer.type", "stops", f"DeepSpeed 0.19.8 has dropped {name}", cure)
        if (config.get("zero_optimization") or {}).get("stage", 0):
            yield Mistake("optimizer.type", "stops", f"{name} does not work with ZeRO", '"stage": 0')
    if name.lower() == "adam" and "adam_w_mode" not in params:
        told = '"Adam" trains with AdamW\'s decoupled weight decay, by default'
        yield Mistake("optimizer.type", "silent", told, '"AdamW", or "adam_w_mode": false')
    if "max_grad_norm" in params:
        told = "DeepSpeed refuses it here"
        yield Mistake("optimizer.params.max_grad_norm", "stops", told, "gradient_clipping, at the top")


def _recompute(config: Config) -> Iterator[Mistake]:
    if config.get("activation_checkpointing"):
        yield Mistake(
            "activation_checkpointing",
            "silent",
            "this section recomputes nothing by itself: it only sets up deepspeed.checkpointing.checkpoint, "
            "which the model must call",
            "model.gradient_checkpointing_enable(), or call it in the model",
        )
