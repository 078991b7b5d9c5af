"""What goes wrong with a DeepSpeed JSON: the batch, the width, what is read by nobody, what cannot be saved.

``"auto"`` is a word of Trainer and of Accelerate, which fill it in; DeepSpeed itself drops it inside a
section and stops at it elsewhere. So a file that holds one is written for them, and some rules ask who reads
the file (`Overrides.program`).

Sources, where not seen by trial: github deepspeedai/DeepSpeed, deepspeed/runtime/config.py,
runtime/config_utils.py, runtime/engine.py; github huggingface/transformers, integrations/deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.known_keys import (
    DEEPSPEED,
    DEEPSPEED_OPTIMIZERS,
    DEEPSPEED_REMOVED,
    SECOND_NAMES,
    STRICT,
    TORCH_OPTIMIZERS,
    ZERO_LEAST,
    ZERO_REMOVED,
)
from workshop.configs.mistakes.mistake import Mistake, kind_among, misspelt, table_at, truth, whole_number
from workshop.configs.onebit import NAMES as ONEBIT
from workshop.configs.overrides import Overrides
from workshop.facts.checks import nearest
from workshop.facts.short_repr import short_repr

Config = Mapping[str, Any]
TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
GATHER = "stage3_gather_16bit_weights_on_model_save"
HUGGING_FACE = {"accelerate", "trainer"}


def deepspeed_mistakes(
    config: Config, overrides: Overrides, readers: frozenset[str] | None = None
) -> list[Mistake]:
    """Everything found wrong, in the order of the file's own logic.

    Args:
        config: the JSON's content.
        overrides: what is known beside it.
        readers: who may read it; by default as the overrides say.
    """
    readers = overrides.readers() if readers is None else readers
    mistakes = [
        *_keys(config),
        *_numbers(config),
        *_batch(config, overrides.num_processes),
        *_auto(config, readers),
    ]
    if autos(config) and readers & HUGGING_FACE:
        readers -= {"deepspeed"}  # which has had its word
    return [
        *mistakes,
        *_width(config, readers),
        *_clipping(config, readers),
        *_zero(config, readers),
        *_optimizer(config),
        *_recompute(config),
    ]


def _keys(config: Config) -> Iterator[Mistake]:
    known = {key: value for key, value in config.items() if key not in DEEPSPEED_REMOVED}
    yield from misspelt(known, "", DEEPSPEED)
    gone = [key for key in DEEPSPEED_REMOVED if key in config]
    gone += [f"zero_optimization.{key}" for key in ZERO_REMOVED if key in zero_section(config)]
    for key in gone:
        problem = "DeepSpeed 0.19 has dropped this"
        yield Mistake(key, "stops", problem, "take it out, or use an older version")
    for path, names in STRICT.items():
        section = zero_section(config) if path == "zero_optimization" else _at(config, path)
        seconds = SECOND_NAMES.get(path, {})
        for key, value in section.items():
            if value == "auto":  # dropped before anybody looks at its name
                continue
            if key in seconds and seconds[key] in section:
                problem = f"it is {seconds[key]} by another name, and DeepSpeed takes one of the two"
                yield Mistake(f"{path}.{key}", "stops", problem, "take one of them out")
            elif key not in names and key not in seconds and f"{path}.{key}" not in gone:
                problem = f"DeepSpeed knows no such key{nearest(key, [*names, *seconds])}"
                yield Mistake(f"{path}.{key}", "stops", problem, "correct it or take it out")


def _at(config: Config, path: str) -> Config:
    """The settings at a path; ``zero_optimization`` may be true or false, the form of old versions."""
    if path.startswith("zero_optimization.") and isinstance(config.get("zero_optimization"), bool):
        return {}
    return table_at(config, path)


def zero_section(config: Config) -> dict[str, Any]:
    """``zero_optimization`` in the documentation's names; true alone (an old form) is stage 1."""
    if isinstance(config.get("zero_optimization"), bool):
        return {"stage": int(config["zero_optimization"])}
    return dict(table_at(config, "zero_optimization"))


def zero_setting(section: Config, name: str) -> Any:
    """A setting of ``zero_optimization`` under either of its names."""
    seconds = {new: old for old, new in SECOND_NAMES["zero_optimization"].items()}
    return section.get(name, section.get(seconds.get(name, name)))


def zero_stage(section: Config) -> int | None:
    """The stage, 0 where the section does not say or says ``"auto"``; None for one that does not exist."""
    value = section.get("stage", 0)
    stage = 0 if value == "auto" else whole_number(value)
    return stage if stage in (0, 1, 2, 3) else None


def offload_device(section: Config, what: str) -> str:
    """Where ``"param"`` or ``"optimizer"`` shall be offloaded to: ``"none"``, ``"cpu"`` or ``"nvme"``."""
    if truth(section.get("cpu_offload" if what == "optimizer" else "cpu_offload_param")):  # old names
        return "cpu"
    device = str(table_at(section, f"offload_{what}").get("device") or "none")
    return "none" if device == "auto" else device


def numbers_of_batch(config: Config) -> list[int]:
    """The three numbers, 0 for one that is missing or ``auto``."""
    return [value if type(value := config.get(key)) is int else 0 for key in TRIPLE]


def _numbers(config: Config) -> Iterator[Mistake]:
    """Words in the place of numbers."""
    for key in (*TRIPLE, "gradient_clipping"):
        value = config.get(key)
        if isinstance(value, str) and value != "auto":
            yield Mistake(
                key,
                "stops",
                f"{short_repr(value)} is a text, not a number",
                "write the number, without quotes",
            )
        elif key in TRIPLE and value not in (None, "auto") and not (type(value) is int and value > 0):
            problem = f"{short_repr(value)} is not a whole number of at least 1"
            yield Mistake(key, "stops", problem, "1 or more, or leave it out")
    section = zero_section(config)
    for key, least in ZERO_LEAST.items():
        value = zero_setting(section, key)
        is_text = isinstance(value, str) and value != "auto"
        if is_text or (isinstance(value, int | float) and not (value >= least and value % 1 == 0)):
            problem = f"{short_repr(value)} is not a whole number of at least {least}"
            yield Mistake(f"zero_optimization.{key}", "stops", problem, f"{least} or more, or leave it out")


def _batch(config: Config, ranks: int) -> Iterator[Mistake]:
    total, micro, steps = numbers_of_batch(config)
    if total and micro and total % (micro * (steps or 1)):
        problem = f"{total} does not divide by {micro} a GPU" + (f" times {steps} steps" if steps else "")
        yield Mistake("train_batch_size", "stops", problem, f"a multiple of {micro * (steps or 1)}")
    elif ranks and total and micro and total != micro * (steps or max(1, total // micro // ranks)) * ranks:
        steps = steps or max(1, total // micro // ranks)
        yield Mistake(
            "train_batch_size",
            "stops",
            f"{total} is not {micro} a GPU times {steps} steps times {ranks} ranks = {micro * steps * ranks}",
            f"train_batch_size: {micro * steps * ranks}, or leave it out",
        )
    elif ranks and total and not micro and config.get(TRIPLE[1]) != "auto" and total % (ranks * (steps or 1)):
        each = f"{ranks} ranks" + (f" times {steps} steps" if steps else "")
        problem = f"{total} does not divide by {each}"
        yield Mistake("train_batch_size", "stops", problem, f"a multiple of {ranks * (steps or 1)}")
    if all(config.get(key) is None for key in TRIPLE[:2]):
        problem = "neither train_batch_size nor train_micro_batch_size_per_gpu is there"
        yield Mistake("train_micro_batch_size_per_gpu", "stops", problem, "say what one GPU takes at once")


def autos(config: Config) -> list[str]:
    """Paths that say ``"auto"`` where Trainer and Accelerate fill it in."""
    keys = [key for key in (*TRIPLE, "gradient_clipping") if config.get(key) == "auto"]
    for section in ("bf16", "fp16", "zero_optimization", "optimizer.params", "scheduler.params"):
        inside = zero_section(config) if section == "zero_optimization" else _at(config, section)
        keys += [f"{section}.{key}" for key, value in inside.items() if value == "auto"]
    return keys


def _auto(config: Config, readers: frozenset[str]) -> Iterator[Mistake]:
    """``"auto"``, where nobody fills it in."""
    keys = autos(config)
    stop = [path for path in keys if path in (*TRIPLE, "gradient_clipping") or path.startswith("optimizer.")]
    kind = kind_among(readers, {"deepspeed"}, "stops")
    if stop and kind:
        problem = '"auto" is filled in by Trainer or Accelerate; deepspeed.initialize stops at it'
        yield Mistake(stop[0], kind, problem, "a number, unless Trainer or Accelerate reads this file")
    widths = [path for path in keys if path in ("bf16.enabled", "fp16.enabled")]
    if widths and kind and True not in (enabled(config, "fp16"), enabled(config, "bf16")):
        problem = (
            '"auto" is filled in by Trainer or Accelerate; deepspeed.initialize drops it and trains in fp32'
        )
        cure = "true or false, unless Trainer or Accelerate reads this file"
        yield Mistake(widths[0], kind_among(readers, {"deepspeed"}, "silent"), problem, cure)


def enabled(config: Config, width: str) -> Any:
    """``True``, ``False`` or ``"auto"``: whether a 16-bit width is switched on."""
    old_name = width == "bf16" and config.get("bf16") is None
    value = table_at(config, "bfloat16" if old_name else width).get("enabled", False)
    return "auto" if value == "auto" else truth(value)


def _width(config: Config, readers: frozenset[str]) -> Iterator[Mistake]:
    half, brain = enabled(config, "fp16"), enabled(config, "bf16")
    kind = kind_among(readers, {"deepspeed"}, "costly")
    if half is True and brain is True:
        yield Mistake("fp16.enabled", "stops", "fp16 and bf16 are both on", "keep bf16, where the GPU has it")
    elif half is False and brain is False and "torch_autocast" not in config and kind:
        problem = "neither bf16 nor fp16 is on: everything is computed in fp32"
        problem += ", unless Trainer or Accelerate is told otherwise" if kind == "depends" else ""
        yield Mistake("bf16.enabled", kind, problem, '"bf16": {"enabled": true}')
    for width in ("fp16", "bf16"):
        section = table_at(config, width)
        if section and "enabled" not in section:
            problem = "the section is there, but not switched on"
            yield Mistake(f"{width}.enabled", "silent", problem, "enabled: true")


def _clipping(config: Config, readers: frozenset[str]) -> Iterator[Mistake]:
    clip = config.get("gradient_clipping")
    if clip is None:
        yield Mistake(
            "gradient_clipping",
            "silent",
            "without this key DeepSpeed 0.19 clips gradients at norm 1.0 (earlier versions did not clip), "
            "whatever "
            "the script or Trainer's max_grad_norm says",
            "write the norm you want; 0 where you want none",
        )
    elif clip == "auto":
        kind = kind_among(readers, {"accelerate"}, "silent")
        problem = '"auto" becomes 1.0 under Accelerate, max_grad_norm under Trainer'
        if kind:
            yield Mistake("gradient_clipping", kind, problem, "write the norm you want")


def _zero(config: Config, readers: frozenset[str]) -> Iterator[Mistake]:
    if "zero_optimization" not in config:
        problem = (
            "without this section there is no ZeRO (stage 0), and Accelerate and Trainer refuse the file"
        )
        kind = kind_among(readers, HUGGING_FACE, "stops")
        if kind:
            yield Mistake("zero_optimization", kind, problem, '"zero_optimization": {"stage": ...}')
        return
    section = zero_section(config)
    stage = zero_stage(section)
    if stage is None:
        problem = f"there is no stage {section['stage']!r}"
        yield Mistake("zero_optimization.stage", "stops", problem, "0, 1, 2 or 3")
        return
    if section.get("stage") == "auto":  # then Accelerate's own setting decides
        problem = (
            '"auto" is Accelerate\'s setting, 2 by default; deepspeed.initialize drops it and shards nothing'
        )
        kind = kind_among(readers, {"deepspeed"}, "silent") or "depends"
        yield Mistake("zero_optimization.stage", kind, problem, "the stage")
        return
    yield from _offload(config, section, stage)
    idle = [key for key in section if key.startswith("stage3_")] if stage != 3 else []
    if idle:
        problem = f"stage is {stage}: {', '.join(idle)} has no effect"
        yield Mistake(f"zero_optimization.{idle[0]}", "silent", problem, '"stage": 3, or take it out')
    old_name = section.get("stage3_gather_fp16_weights_on_model_save")
    if stage == 3 and not truth(zero_setting(section, GATHER)) and not truth(old_name):
        problem = (
            "training works, and at its end save_16bit_model and accelerator.get_state_dict give nothing: "
            "no rank has "
        )
        problem += "the weights" + (
            "; Trainer saves shards, for zero_to_fp32.py" if "trainer" in readers else ""
        )
        kind = kind_among(readers, {"accelerate"}, "stops") or "depends"
        if readers != {"trainer"}:
            yield Mistake(f"zero_optimization.{GATHER}", kind, problem, "true")


def _offload(config: Config, section: Config, stage: int) -> Iterator[Mistake]:
    """What only some stages offload."""
    for what, old in (("param", "cpu_offload_param"), ("optimizer", "cpu_offload")):
        if section.get(old) is not None and section.get(f"offload_{what}") is not None:
            problem = f"it is offload_{what} by its old name, and DeepSpeed takes one of the two"
            yield Mistake(f"zero_optimization.{old}", "stops", problem, "take it out")
    weights, states = (offload_device(section, what) for what in ("param", "optimizer"))
    if weights != "none" and stage < 3:
        problem = f"{weights} at stage {stage}: only stage 3 offloads it"
        yield Mistake("zero_optimization.offload_param", "silent", problem, '"stage": 3')
    if states != "none" and stage < 1:
        problem = f"{states} at stage 0: only stage 1 and above offloads it"
        on_cpu = truth(config.get("zero_force_ds_cpu_optimizer", True))
        problem += "; DeepSpeed wants its CPU optimizer, which refuses weights on a GPU" if on_cpu else ""
        yield Mistake(
            "zero_optimization.offload_optimizer", "stops" if on_cpu else "silent", problem, '"stage": 1'
        )


def _optimizer(config: Config) -> Iterator[Mistake]:
    section = table_at(config, "optimizer")
    name, params = str(section.get("type") or ""), table_at(section, "params")
    if name in ONEBIT:
        cure = "a DeepSpeed before 0.19, or lesson 27_fewer_bytes"
        yield Mistake("optimizer.type", "stops", f"DeepSpeed 0.19.8 has dropped {name}", cure)
    elif name and name.lower() not in DEEPSPEED_OPTIMIZERS and name not in TORCH_OPTIMIZERS:
        known = [*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS]
        problem = f"neither DeepSpeed nor torch.optim has {name!r}{nearest(name, known)}"
        yield Mistake(
            "optimizer.type", "stops", problem, "AdamW, or no optimizer here, and one in the script"
        )
    if name.lower() == "adam" and "adam_w_mode" not in params:
        problem = '"Adam" trains with AdamW\'s decoupled weight decay, by default'
        yield Mistake("optimizer.type", "silent", problem, '"AdamW", or "adam_w_mode": false')
    if "max_grad_norm" in params:
        problem = "DeepSpeed refuses it here"
        yield Mistake("optimizer.params.max_grad_norm", "stops", problem, "gradient_clipping, at the top")


def _recompute(config: Config) -> Iterator[Mistake]:
    if table_at(config, "activation_checkpointing"):
        yield Mistake(
            "activation_checkpointing",
            "depends",
            "this section recomputes nothing by itself: it only sets up deepspeed.checkpointing.checkpoint, "
            "which the model must call (Megatron-DeepSpeed's does)",
            "model.gradient_checkpointing_enable(), or call it in the model",
        )
