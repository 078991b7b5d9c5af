"""FSDP2's arguments: for Accelerate's plugin, for transformers' Trainer, and the class that is wrapped.

FSDP gathers a *unit* of the model at a time; which modules are units decides how much is saved. A layer of a
transformer is a good unit. Files name its **class**, so the class's name must be known: `layer_class` has
that of each known family as transformers writes it, and of this workshop's own `GPT`.

``reshard_after_forward=True`` frees a unit's weights after its forward and gathers them again for its
backward (ZeRO-3). False keeps them until backward (like ZeRO-2: less traffic, more memory). Zhao et al. 2023,
arXiv 2304.11277, section 3.2.
"""

from __future__ import annotations

from typing import Any

from workshop.configs.engines import chosen_engine
from workshop.facts.run import Run
from workshop.facts.tables import table

OWN_LAYER = "Layer"
"""The layer of `workshop.models.gpt.GPT`."""

FAMILIES = {
    "bert": "BertLayer",
    "bloom": "BloomBlock",
    "codellama": "LlamaDecoderLayer",
    "deepseek-v2": "DeepseekV2DecoderLayer",
    "deepseek-v3": "DeepseekV3DecoderLayer",
    "falcon": "FalconDecoderLayer",
    "gemma-2-": "Gemma2DecoderLayer",
    "gemma-": "GemmaDecoderLayer",
    "gpt-neox": "GPTNeoXLayer",
    "gpt-oss": "GptOssDecoderLayer",
    "gpt-": OWN_LAYER,  # gpt-1m ... gpt-125m are this workshop's own
    "gpt2": "GPT2Block",
    "llama-4": "Llama4TextDecoderLayer",
    "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer",
    "mixtral": "MixtralDecoderLayer",
    "olmo-2": "Olmo2DecoderLayer",
    "opt": "OPTDecoderLayer",
    "phi-3": "Phi3DecoderLayer",
    "phi": "PhiDecoderLayer",
    "pythia": "GPTNeoXLayer",
    "qwen1.5-moe": "Qwen2MoeDecoderLayer",
    "qwen2.5": "Qwen2DecoderLayer",
    "qwen3-30b-a3b": "Qwen3MoeDecoderLayer",
    "qwen3-235b-a22b": "Qwen3MoeDecoderLayer",
    "qwen3": "Qwen3DecoderLayer",
    "smollm2": "LlamaDecoderLayer",
    "smollm3": "SmolLM3DecoderLayer",
    "stablelm-alpha": "GPTNeoXLayer",
}
"""A model name's beginning -> the class of its layers. The longest beginning wins."""


def layer_class(model: str) -> str:
    """The class of a known model's layers, "" where it is not known."""
    if model not in table("models"):  # a name of the user's own says nothing about its classes
        return ""
    beginnings = [beginning for beginning in FAMILIES if model.startswith(beginning)]
    return FAMILIES[max(beginnings, key=len)] if beginnings else ""


def wrapped_class(run: Run, wrap_class: str) -> str:
    """The class to wrap: as given, else the known one; ValueError where neither says."""
    wrapped = wrap_class or layer_class(run.model.name)
    if not wrapped:
        raise ValueError(
            f"the class of {run.model.name}'s layers is not known, and FSDP wraps by class: give wrap_class, "
            "the name that type(model.layers[0]).__name__ prints"
        )
    return wrapped


def fsdp_plugin_arguments(run: Run, wrap_class: str = "") -> dict[str, Any]:
    """The keyword arguments of ``accelerate.FullyShardedDataParallelPlugin`` for a run.

    ::

        Accelerator(mixed_precision=..., fsdp_plugin=FullyShardedDataParallelPlugin(**arguments))

    ``mixed_precision`` belongs to `Accelerator`, and hybrid sharding to its ``parallelism_config``.

    Raises:
        ValueError: FSDP cannot do this run, with every reason; or the layers' class is not known.
    """
    chosen_engine(run, "fsdp")
    return {
        "fsdp_version": 2,
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_cls_names_to_wrap": [wrapped_class(run, wrap_class)],
        "reshard_after_forward": run.layout.zero == 3,
        "cpu_offload": run.layout.offload == "params",
        "activation_checkpointing": run.layout.recompute == "full",
        "activation_checkpointing_offload": run.layout.offload == "activations",
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": False,
    }


TRAINER_OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw-8bit": "adamw_bnb_8bit",
    "sgd": "sgd",
    "lion": "lion_32bit",
}


def trainer_arguments(run: Run, wrap_class: str = "") -> dict[str, Any]:
    """What `transformers.TrainingArguments` (version 5) needs to train a run with FSDP2.

    Raises:
        ValueError: FSDP cannot do this run; or Trainer has no such optimizer; or hybrid sharding or the
            offload of activations is asked for, which TrainingArguments cannot say (Accelerate's YAML can).
    """
    plugin = fsdp_plugin_arguments(run, wrap_class)
    layout = run.layout
    if layout.replicate > 1 or layout.offload == "activations":
        raise ValueError(
            "TrainingArguments have no word for hybrid sharding (replicate > 1) or for the offload of "
            "activations; start the Trainer with `accelerate launch` and the YAML of accelerate_yaml(run)"
        )
    if run.optimizer not in TRAINER_OPTIMIZERS:
        raise ValueError(
            f"Trainer has no optimizer {run.optimizer!r} by name (it has {', '.join(TRAINER_OPTIMIZERS)}); "
            "hand it one yourself: Trainer(optimizers=...)"
        )
    return {
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.accumulation,
        "bf16": layout.precision == "fsdp-bf16",
        "optim": TRAINER_OPTIMIZERS[run.optimizer],
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": plugin["transformer_cls_names_to_wrap"],
            "reshard_after_forward": plugin["reshard_after_forward"],
            "cpu_offload": plugin["cpu_offload"],
            "activation_checkpointing": plugin["activation_checkpointing"],
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }
