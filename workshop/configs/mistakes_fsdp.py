"""What goes wrong with FSDP in an Accelerate YAML: the version, the wrap, and saving an adapter.

The wrap decides everything: with no layer wrapped the whole model is one unit, gathered whole for the whole
step, and "fully sharded" saves no peak memory of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workshop.configs.fsdp_policy import layer_class
from workshop.configs.given import Given
from workshop.configs.known_keys import FSDP1_ONLY
from workshop.configs.silent_mistakes import Mistake, truth
from workshop.facts.checks import nearest

ONE_UNIT = "the whole model is one unit: every rank holds all weights at once in every step"
DEFAULT_MIN_NUM_PARAMS = 100_000_000
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")


def fsdp_section(config: Mapping[str, Any]) -> dict[str, Any]:
    """``fsdp_config`` with the ``fsdp_`` that the launcher puts before keys that lack it."""
    section = config.get("fsdp_config") or {}
    return {key if key.startswith("fsdp_") else f"fsdp_{key}": value for key, value in section.items()}


def fsdp_mistakes(config: Mapping[str, Any], given: Given) -> Iterator[Mistake]:
    """Everything found wrong with ``fsdp_config``."""
    if config.get("distributed_type") != "FSDP":
        return
    section = fsdp_section(config)
    yield from _version(section)
    yield from _wrap(section, given)
    yield from _adapter(section, given)
    if truth(section.get("fsdp_activation_checkpointing_offload")) and not truth(
        section.get("fsdp_activation_checkpointing")
    ):
        yield Mistake(
            "fsdp_config.fsdp_activation_checkpointing_offload",
            "stops",
            "it moves the inputs of recomputed layers, and nothing is recomputed",
            "fsdp_activation_checkpointing: true",
        )


def _version(section: Mapping[str, Any]) -> Iterator[Mistake]:
    version = str(section.get("fsdp_version", 1))
    if "fsdp_version" not in section:
        yield Mistake(
            "fsdp_config.fsdp_version", "silent", "without this key it is FSDP1, which is deprecated",
            "fsdp_version: 2",
        )  # fmt: skip
    reshard = section.get("fsdp_reshard_after_forward")
    if version == "1" and str(reshard).lower() in ("true", "false"):
        yield Mistake(
            "fsdp_config.fsdp_reshard_after_forward",
            "silent",
            f"FSDP1 does not read {reshard!r} here; it shards as fsdp_sharding_strategy says, FULL_SHARD by "
            "default",
            "fsdp_version: 2",
        )
    if version != "2":
        return
    for key, instead in FSDP1_ONLY.items():
        if key in section:
            told = f"{section[key]!r} is a word of FSDP1: FSDP2 never sees it"
            yield Mistake(f"fsdp_config.{key}", "silent", told, f"take it out; write {instead}")


def _wrap(section: Mapping[str, Any], given: Given) -> Iterator[Mistake]:
    policy = str(section.get("fsdp_auto_wrap_policy") or "NO_WRAP").upper()
    key = "fsdp_config.fsdp_auto_wrap_policy"
    cure = "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, and the class of the layers"
    spec = given.spec()
    if policy == "NO_WRAP":
        yield Mistake(key, "silent", f"nothing is wrapped, so {ONE_UNIT}", cure)
    elif policy == "SIZE_BASED_WRAP":
        least = int(section.get("fsdp_min_num_params", DEFAULT_MIN_NUM_PARAMS))
        layer = sum(spec.layer_params(spec.layer_kinds()[-1]).values()) if spec else 0
        if least == 0:
            told = f"fsdp_min_num_params: 0 does not mean every module, it means none, so {ONE_UNIT}"
            yield Mistake("fsdp_config.fsdp_min_num_params", "silent", told, cure)
        elif layer and layer < least:
            told = f"a layer has {layer:,} parameters, fewer than {least:,}: units will not be layers"
            yield Mistake("fsdp_config.fsdp_min_num_params", "costly", told, cure)
    elif policy == "TRANSFORMER_BASED_WRAP":
        yield from _wrapped_class(section, given)
    else:
        told = f"there is no policy {policy!r}{nearest(policy, POLICIES)}"
        yield Mistake(key, "stops", told, cure)


def _wrapped_class(section: Mapping[str, Any], given: Given) -> Iterator[Mistake]:
    key, spec = "fsdp_config.fsdp_transformer_layer_cls_to_wrap", given.spec()
    layer = given.layer or (layer_class(spec.name) if spec else "")
    cure = f"fsdp_transformer_layer_cls_to_wrap: {layer or 'the name of type(layer)'}"
    named = section.get("fsdp_transformer_layer_cls_to_wrap")
    if not named:
        yield Mistake(
            key,
            "silent",
            f"unless the model is one of transformers', nothing is wrapped, and {ONE_UNIT}",
            cure,
        )
        return
    names = [name.strip() for name in str(named).split(",")]
    for name in names:
        if given.classes and name not in given.classes:
            told = f"the model has no class {name!r}{nearest(name, given.classes)}"
            yield Mistake(key, "stops", told, cure)
        elif not given.classes and layer and name != layer and layer not in names:
            told = f"{name!r} is not the class of {spec.name if spec else 'the model'}'s layers"
            yield Mistake(key, "stops", told, cure)
    if given.classes and layer and layer not in names and all(name in given.classes for name in names):
        told = f"{', '.join(names)} is a class of the model, but not of its layers ({layer}): "
        yield Mistake(key, "silent", told + "the layers are not units", cure)


def _adapter(section: Mapping[str, Any], given: Given) -> Iterator[Mistake]:
    if given.adapter is not None and truth(section.get("fsdp_activation_checkpointing")):
        yield Mistake(
            "fsdp_config.fsdp_activation_checkpointing",
            "silent",
            "with peft, get_peft_model_state_dict finds no tensors under FSDP2's recompute wrapper: an empty "
            "adapter is saved",
            "take the adapter from the full state dict: {k: v for k, v in state.items() if 'lora_' in k}",
        )
