"""What ``accelerate launch`` tells a script: the environment variables it makes from the YAML.

There is no more to it. ``accelerate launch`` reads the file, sets these, and starts torchrun with
``num_processes`` ranks; in each rank ``Accelerator()`` reads them back. A program that sets them itself, and
is started by torchrun, cannot tell the difference (`tests/configs` holds this against Accelerate's own code).

    os.environ.update(accelerate_environment(yaml.safe_load(text)))
    accelerator = Accelerator()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workshop.configs.mistakes.fsdp import fsdp_section

KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")

# fsdp_config's key -> variable, and the value where the key is absent (None: the variable is not set).
_FSDP: dict[str, tuple[str, str | None]] = {
    "fsdp_version": ("FSDP_VERSION", "1"),
    "fsdp_sharding_strategy": ("FSDP_SHARDING_STRATEGY", "FULL_SHARD"),
    "fsdp_reshard_after_forward": ("FSDP_RESHARD_AFTER_FORWARD", "true"),
    "fsdp_offload_params": ("FSDP_OFFLOAD_PARAMS", "false"),
    "fsdp_min_num_params": ("FSDP_MIN_NUM_PARAMS", "100000000"),
    "fsdp_auto_wrap_policy": ("FSDP_AUTO_WRAP_POLICY", None),
    "fsdp_transformer_layer_cls_to_wrap": ("FSDP_TRANSFORMER_CLS_TO_WRAP", None),
    "fsdp_backward_prefetch": ("FSDP_BACKWARD_PREFETCH", None),
    "fsdp_state_dict_type": ("FSDP_STATE_DICT_TYPE", None),
    "fsdp_forward_prefetch": ("FSDP_FORWARD_PREFETCH", "false"),
    "fsdp_use_orig_params": ("FSDP_USE_ORIG_PARAMS", "true"),
    "fsdp_cpu_ram_efficient_loading": ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
    "fsdp_sync_module_states": ("FSDP_SYNC_MODULE_STATES", "true"),
    "fsdp_activation_checkpointing": ("FSDP_ACTIVATION_CHECKPOINTING", "false"),
    "fsdp_activation_checkpointing_offload": ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"),
    "fsdp_ignored_modules": ("FSDP_IGNORED_MODULES", None),
}
_DEEPSPEED = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
}
_MESH = {
    "parallelism_config_dp_replicate_size": "1",
    "parallelism_config_dp_shard_size": "1",
    "parallelism_config_tp_size": "1",
    "parallelism_config_cp_size": "1",
    "parallelism_config_cp_backend": "torch",
    "parallelism_config_sp_size": "1",
    "parallelism_config_sp_backend": "deepspeed",
}


def accelerate_environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables for a YAML's content. Unknown keys of a section set nothing, as with the launcher.

    Raises:
        ValueError: ``distributed_type`` is none of `KINDS`.
    """
    kind = config.get("distributed_type")
    if kind not in KINDS:
        raise ValueError(f"distributed_type {kind!r} is none of {', '.join(KINDS)}")
    variables = {"ACCELERATE_MIXED_PRECISION": str(config.get("mixed_precision") or "no")}
    if kind == "NO":
        variables["ACCELERATE_USE_CPU"] = str(bool(config.get("use_cpu")))
    elif kind == "DEEPSPEED":
        variables |= _deepspeed(config)
    elif kind == "FSDP":
        variables |= _fsdp(fsdp_section(config))
    mesh = config.get("parallelism_config")
    if mesh:
        variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        variables |= {key.upper(): str(mesh.get(key, usual)) for key, usual in _MESH.items()}
    return variables


def _fsdp(given: Mapping[str, Any]) -> dict[str, str]:
    variables = {"ACCELERATE_USE_FSDP": "true"}
    for key, (variable, usual) in _FSDP.items():
        value = given.get(key, usual)
        if value is not None:
            variables[variable] = str(value).lower() if isinstance(value, bool) else str(value)
    return variables


def _deepspeed(config: Mapping[str, Any]) -> dict[str, str]:
    section = config.get("deepspeed_config") or {}
    fields = [*section, *(["mixed_precision"] if config.get("mixed_precision") is not None else [])]
    variables = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ",".join(fields).lower()}
    for key, variable in _DEEPSPEED.items():
        if section.get(key) is not None:
            value = section[key]
            variables[variable] = str(value) if key == "deepspeed_config_file" else str(value).lower()
    return variables
