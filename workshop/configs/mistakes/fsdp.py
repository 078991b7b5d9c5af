"""What goes wrong with FSDP in an Accelerate YAML: the version, the wrap, and saving an adapter.

The wrap decides everything: with no layer wrapped the whole model is one unit, gathered whole for the whole
step, and "fully sharded" saves no peak memory of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.fsdp_policy import layer_class
from workshop.configs.known_keys import (
    BACKWARD_PREFETCH,
    FSDP1_ONLY,
    SHARDING_STRATEGIES,
    STATE_DICT_TYPES,
    WRAP_POLICIES,
)
from workshop.configs.mistakes.mistake import Mistake, table_at, truth, whole_number
from workshop.configs.overrides import Overrides
from workshop.facts.checks import nearest

ONE_UNIT = "the whole model is one unit: every rank holds all weights at once in every step"
DEFAULT_MIN_NUM_PARAMS = 100_000_000
SWITCHES = """
    fsdp_offload_params fsdp_activation_checkpointing fsdp_activation_checkpointing_offload
    fsdp_cpu_ram_efficient_loading
""".split()
"""Read under both versions; what is neither true nor false ends the start."""

NUMBERED = {
    "fsdp_sharding_strategy": SHARDING_STRATEGIES,
    "fsdp_backward_prefetch": BACKWARD_PREFETCH,
    "fsdp_state_dict_type": STATE_DICT_TYPES,
}
"""Choices by name in any case of letters, or by number from 1."""


def fsdp_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """``fsdp_config`` with the ``fsdp_`` that the launcher puts before keys that lack it."""
    section = table_at(config, "fsdp_config")
    return {key if key.startswith("fsdp") else f"fsdp_{key}": value for key, value in section.items()}


def fsdp_mistakes(config: Mapping[str, Any], overrides: Overrides) -> Iterator[Mistake]:
    """Everything found wrong with ``fsdp_config``."""
    if config.get("distributed_type") != "FSDP":
        return
    section = fsdp_section(config)
    version = str(section.get("fsdp_version", 1))
    if version not in ("1", "2"):
        problem = f"there is no FSDP version {section['fsdp_version']!r}"
        yield Mistake("fsdp_config.fsdp_version", "stops", problem, "fsdp_version: 2")
        return
    yield from _version(section, version)
    yield from _values(section, version)
    yield from _wrap(section, overrides)
    yield from _recompute(section, version, overrides)
    if truth(section.get("fsdp_cpu_ram_efficient_loading", True)) and not truth(
        section.get("fsdp_sync_module_states", True)
    ):
        yield Mistake(
            "fsdp_config.fsdp_sync_module_states",
            "stops",
            "with fsdp_cpu_ram_efficient_loading only the first rank loads the weights (it is on unless the "
            "file switches it off), and the launcher refuses not to send them to the others",
            "fsdp_sync_module_states: true, or fsdp_cpu_ram_efficient_loading: false",
        )


def _version(section: Mapping[str, Any], version: str) -> Iterator[Mistake]:
    reshard = section.get("fsdp_reshard_after_forward")
    if version == "1" and reshard is not None:
        without = "" if "fsdp_version" in section else "without fsdp_version it is FSDP1, and "
        yield Mistake(
            "fsdp_config.fsdp_reshard_after_forward",
            "silent",
            f"{without}FSDP1 does not read {reshard!r} here; it shards as fsdp_sharding_strategy says, "
            "FULL_SHARD by "
            "default",
            "fsdp_version: 2",
        )
    if version == "2":
        for key, instead in FSDP1_ONLY.items():
            if key in section:
                problem = f"{section[key]!r} is a word of FSDP1: FSDP2 never sees it"
                yield Mistake(f"fsdp_config.{key}", "silent", problem, f"take it out; write {instead}")


def _values(section: Mapping[str, Any], version: str) -> Iterator[Mistake]:
    """Words that do not exist, where the version reads them."""
    for key, choices in NUMBERED.items():
        value = section.get(key)
        if value is None or (version == "2" and key == "fsdp_sharding_strategy"):
            continue
        number, last = whole_number(value), len(choices) - (key == "fsdp_backward_prefetch")
        if str(value).upper() not in choices and not (number and 1 <= number <= last):
            problem = f"there is no {value!r}{nearest(str(value), choices)}"
            yield Mistake(f"fsdp_config.{key}", "stops", problem, f"one of {', '.join(choices)}")
    switches = [*SWITCHES, *(["fsdp_reshard_after_forward"] if version == "2" else [])]
    for key in switches:
        if str(section.get(key, True)).lower() not in ("y yes t true on 1 n no f false off 0".split()):
            problem = f"{section[key]!r} is neither true nor false"
            yield Mistake(f"fsdp_config.{key}", "stops", problem, "true or false")
    kind = str(section.get("fsdp_state_dict_type"))
    if version == "2" and kind.upper() in ("LOCAL_STATE_DICT", "2"):
        yield Mistake(
            "fsdp_config.fsdp_state_dict_type", "stops", "FSDP2 has no LOCAL_STATE_DICT", "SHARDED_STATE_DICT"
        )


def _wrap(section: Mapping[str, Any], overrides: Overrides) -> Iterator[Mistake]:
    policy = str(section.get("fsdp_auto_wrap_policy") or "NO_WRAP").upper()
    key = "fsdp_config.fsdp_auto_wrap_policy"
    cure = "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, and the class of the layers"
    if policy == "NO_WRAP":
        yield Mistake(key, "silent", f"nothing is wrapped, so {ONE_UNIT}", cure)
    elif policy == "SIZE_BASED_WRAP":
        yield from _wrapped_size(section, overrides, cure)
    elif policy == "TRANSFORMER_BASED_WRAP":
        yield from _wrapped_class(section, overrides)
    else:
        problem = f"there is no policy {policy!r}{nearest(policy, WRAP_POLICIES)}"
        yield Mistake(key, "stops", problem, cure)


def _wrapped_size(section: Mapping[str, Any], overrides: Overrides, cure: str) -> Iterator[Mistake]:
    key, spec = "fsdp_config.fsdp_min_num_params", overrides.spec()
    least = whole_number(section.get("fsdp_min_num_params", DEFAULT_MIN_NUM_PARAMS))
    layer = sum(spec.layer_params(spec.layer_kinds()[-1]).values()) if spec else 0
    if least is None:
        problem = f"{section['fsdp_min_num_params']!r} is not a whole number"
        yield Mistake(key, "stops", problem, f"fsdp_min_num_params: {DEFAULT_MIN_NUM_PARAMS}")
    elif least == 0:
        problem = f"fsdp_min_num_params: 0 does not mean every module, it means none, so {ONE_UNIT}"
        yield Mistake(key, "silent", problem, cure)
    elif layer and layer < least:
        problem = f"a layer has {layer:,} parameters, fewer than {least:,}: units will not be layers"
        yield Mistake(key, "costly", problem, cure)


def _wrapped_class(section: Mapping[str, Any], overrides: Overrides) -> Iterator[Mistake]:
    key, spec = "fsdp_config.fsdp_transformer_layer_cls_to_wrap", overrides.spec()
    layer = overrides.layer or (layer_class(spec.name) if spec else "")
    cure = f"fsdp_transformer_layer_cls_to_wrap: {layer or 'the name of type(layer)'}"
    named = section.get("fsdp_transformer_layer_cls_to_wrap")
    if named is None:
        problem = (
            "a model of transformers names its layers itself; with any other nothing is wrapped, and "
            f"{ONE_UNIT}"
        )
        yield Mistake(key, "depends", problem, cure)
        return
    names = str(named).split(",")
    for name in names:
        if name != name.strip() or not name:
            problem = f"Accelerate splits at the comma alone, and looks for a class called {name!r}"
            yield Mistake(key, "stops", problem, "no blanks: A,B")
        elif overrides.classes and name not in overrides.classes:
            problem = f"the model has no class {name!r}{nearest(name, overrides.classes)}"
            yield Mistake(key, "stops", problem, cure)
        elif not overrides.classes and layer and name != layer and layer not in names:
            problem = f"{name!r} is not the class of {spec.name if spec else 'the model'}'s layers"
            yield Mistake(key, "stops", problem, cure)
    known = overrides.classes
    if known and layer and layer not in names and all(name in known for name in names):
        problem = f"{', '.join(names)} is a class of the model, but not of its layers ({layer}): "
        yield Mistake(key, "silent", problem + "the layers are not units", cure)


def _recompute(section: Mapping[str, Any], version: str, overrides: Overrides) -> Iterator[Mistake]:
    recomputes = truth(section.get("fsdp_activation_checkpointing"))
    key = "fsdp_config.fsdp_activation_checkpointing_offload"
    if truth(section.get("fsdp_activation_checkpointing_offload")):
        if not recomputes:
            problem = "it moves the inputs of recomputed layers, and nothing is recomputed"
            yield Mistake(key, "stops", problem, "fsdp_activation_checkpointing: true")
        elif version == "1":
            yield Mistake(key, "stops", "only FSDP2 moves the inputs of layers", "fsdp_version: 2")
    if overrides.adapter is not None and recomputes:
        yield Mistake(
            "fsdp_config.fsdp_activation_checkpointing",
            "silent",
            "with peft, get_peft_model_state_dict finds no tensors under FSDP2's recompute wrapper: an empty "
            "adapter is saved",
            "take the adapter from the full state dict: {k: v for k, v in state.items() if 'lora_' in k}",
        )
