"""Every mistake that the package names: a file that has it, and what shows that the library does as told.

A case changes a good file. `tests/configs/test_mistakes.py` asks that the mistake is found in it; `test_truth.py`
loads both files with the library and holds its answer against the words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workshop.configs import Overrides
from workshop.facts.run import Adapter

DDP = {"distributed_type": "MULTI_GPU", "num_machines": 1, "num_processes": 8, "mixed_precision": "bf16"}
FSDP = {
    **DDP,
    "distributed_type": "FSDP",
    "fsdp_config": {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_reshard_after_forward": True,
    },
}
FSDP1 = {
    **DDP,
    "distributed_type": "FSDP",
    "fsdp_config": {
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    },
}
ZERO3 = {
    **DDP,
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {
        "zero_stage": 3,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
    },
}
JSON = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
}
GOOD = {"ddp": DDP, "fsdp": FSDP, "fsdp1": FSDP1, "zero3": ZERO3, "json": JSON}
H100 = Overrides(model="llama-3-8b", device="H100")
ACCELERATE, TRAINER, PLAIN = (Overrides(program=name) for name in ("accelerate", "trainer", "deepspeed"))
GONE = object()


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with ``"section.key"`` set to a value, or taken out."""
    config = copy.deepcopy(config)
    for path, value in changes.items():
        *sections, key = path.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        if value is GONE:
            del place[key]
        else:
            place[key] = value
    return config


# ------------------------------------------------------------------ proofs


@dataclass(frozen=True)
class Refused:
    """The library ends with an error that holds ``words``, and takes the good file."""

    words: str
    reader: str = ""  # of `programs/library_reads.py`; "": by the file's kind
    ranks: int = 1


@dataclass(frozen=True)
class Ignored:
    """What the library makes of the file is what it makes of it without ``path``."""

    path: str
    reader: str = ""


@dataclass(frozen=True)
class Shows:
    """What the library makes of the file is as told."""

    look: Callable[[dict[str, Any]], Any]
    reader: str = ""


@dataclass(frozen=True)
class OnRanks:
    """A test of `test_used.py` shows it on real ranks."""

    test: str


@dataclass(frozen=True)
class NotHere:
    """It cannot be shown on this machine's CPU, for this reason."""

    reason: str


Proof = Refused | Ignored | Shows | OnRanks | NotHere


@dataclass(frozen=True)
class Case:
    """A good file, what is changed, and the mistake that must be told: its key, kind and a part of its words."""

    good: str
    changes: dict[str, Any]
    key: str
    kind: str
    told: str
    proofs: tuple[Proof, ...]
    overrides: Overrides | None

    def config(self) -> dict[str, Any]:
        return changed(GOOD[self.good], self.changes)


def case(
    good: str,
    changes: dict[str, Any],
    key: str,
    kind: str,
    told: str,
    *proofs: Proof,
    overrides: Overrides | None = None,
) -> Case:
    return Case(good, changes, key, kind, told, proofs, overrides)


ONE_PROCESS = Shows(
    lambda found: (found["launcher"], found["command"][1:]) == ("simple_launcher", ["train.py"])
)
NOT_READ = Shows(lambda found: "ACCELERATE_USE_CPU" not in found["environment"])

WORDS = [
    case("ddp", {"distributed_type": False}, "distributed_type", "silent", "one process is started, whatever", ONE_PROCESS),
    case("ddp", {"distributed_type": False, "num_processes": GONE}, "distributed_type", "stops", "asks for num_processes", Refused("--num_processes")),
    case("ddp", {"distributed_type": GONE}, "distributed_type", "stops", "missing", Refused("`distributed_type` must be specified")),
    case("ddp", {"distributed_type": "FDSP"}, "distributed_type", "stops", "did you mean 'FSDP'", Refused("not a valid DistributedType")),
    case("ddp", {"compute_environment": "LOCAL"}, "compute_environment", "stops", "there is no 'LOCAL'", Refused("had unknown keys")),
    case("ddp", {"mixed_precision": False}, "mixed_precision", "stops", "false to YAML", Refused("'bool' object has no attribute 'lower'")),
    case("ddp", {"mixed_precision": "bf17"}, "mixed_precision", "stops", "did you mean 'bf16'", Refused("Unknown mixed_precision mode")),
    case("ddp", {"dynamo_config": {"dynamo_backend": "INDUCTR"}}, "dynamo_config.dynamo_backend", "stops", "did you mean 'INDUCTOR'", Refused("Unknown dynamo backend")),
    case("ddp", {"mixed_precision": "fp8", "fp8_config": {"backend": "te"}}, "fp8_config.fp8_backend", "stops", "did you mean 'TE'", Refused("not a valid FP8BackendType")),
    case("ddp", {"num_machines": "2"}, "num_machines", "stops", "not a whole number", Refused("TypeError")),
    case("ddp", {"num_processes": "8", "num_machines": 2}, "num_processes", "stops", "not a whole number", Refused("TypeError")),
    case("ddp", {"num_processes": "eight"}, "num_processes", "stops", "not a whole number", Refused("eight")),
    case("ddp", {"num_processes": 8.0}, "num_processes", "stops", "8.0 is not a whole number", Refused("8.0")),
    case("ddp", {"num_proceses": 8}, "num_proceses", "stops", "did you mean 'num_processes'", Refused("unknown keys")),
    case("ddp", {"_comment": "ours"}, "_comment", "stops", "no such key", Refused("unknown keys")),
    case("ddp", {"gpu_ids": 0}, "gpu_ids", "stops", "is a number", Refused("'int' object has no attribute 'split'")),
    case("ddp", {"gpu_ids": "0"}, "gpu_ids", "stops", "is one device", Refused("Less than two GPU ids")),
]  # fmt: skip

PROCESSES = [
    case("ddp", {"distributed_type": "MULTI_CPU"}, "distributed_type", "silent", "starts one process", ONE_PROCESS),
    case("ddp", {"distributed_type": "NO"}, "distributed_type", "silent", "whatever num_processes says (8)", ONE_PROCESS),
    case("ddp", {"use_cpu": True}, "use_cpu", "silent", "each believes that it is rank 0 of 1", NOT_READ, OnRanks("test_on_cpus_nobody_works_together")),
    case("fsdp", {"use_cpu": True}, "use_cpu", "silent", "nothing is sharded", NOT_READ, OnRanks("test_on_cpus_nobody_works_together")),
    case("fsdp", {}, "use_cpu", "silent", "without GPUs FSDP starts 8", OnRanks("test_on_cpus_nobody_works_together"), overrides=Overrides(device="this-machine")),
    case("zero3", {"use_cpu": True}, "use_cpu", "stops", "a batch for one process", NOT_READ, OnRanks("test_on_cpus_nobody_works_together")),
    case("ddp", {"num_machines": 3}, "num_processes", "silent", "each starts 2, 6 in all", Shows(lambda found: found["each_node"] == "2")),
    case("ddp", {"num_machines": 4}, "num_processes", "silent", "6 of its 8 devices stay idle", Shows(lambda found: found["each_node"] == "2"), overrides=H100),
    case("ddp", {"num_machines": 2, "machine_rank": 0}, "main_process_ip", "stops", "a host called None", Shows(lambda found: found["endpoint"].startswith("None:"))),
    case("ddp", {"num_machines": 2, "machine_rank": 1}, "machine_rank", "depends", "the file of machine 1", Shows(lambda found: found["node"] == 1)),
    case("zero3", {"num_machines": 2}, "deepspeed_config.deepspeed_hostfile", "silent", "trains on this machine alone", Shows(lambda found: found["host_file"] == "none")),
    case("zero3", {"num_machines": 2, "deepspeed_config.deepspeed_multinode_launcher": "ssh"}, "deepspeed_config.deepspeed_multinode_launcher", "stops", "there is no 'ssh'", Shows(lambda found: not found["knows_launcher"])),
    case("ddp", {"fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True}}, "fsdp_config", "silent", "nobody reads this section", Ignored("fsdp_config")),
    case("fsdp", {"deepspeed_config": {"zero_stage": 3}}, "deepspeed_config", "silent", "nobody reads this section", Ignored("deepspeed_config")),
    case("ddp", {"fp8_config": {"backend": "AO"}}, "fp8_config", "silent", "nobody reads this section", Ignored("fp8_config")),
]  # fmt: skip

MESHES = [
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 0}}, "parallelism_config.parallelism_config_dp_shard_size", "stops", "0 is not a whole number of at least 1", Refused("dp_shard_size must be at least 1")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 8, "parallelism_config_cp_backend": "ring"}}, "parallelism_config.parallelism_config_cp_backend", "stops", "there is no 'ring'", Refused("cp_backend must be one of")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 4, "parallelism_config_cp_comm_strategy": "ring"}}, "parallelism_config.parallelism_config_cp_comm_strategy", "stops", "there is no 'ring'", Refused("Invalid cp_comm_strategy")),
    case("zero3", {"parallelism_config": {"parallelism_config_sp_size": 8, "parallelism_config_sp_attn_implementation": "eager"}}, "parallelism_config.parallelism_config_sp_attn_implementation", "stops", "there is no 'eager'", Refused("Invalid sp_attn_implementation")),
    case("fsdp", {"parallelism_config": {"parallelism_config_cp_size": 4, "parallelism_config_sp_size": 2}}, "parallelism_config", "stops", "both cut the sequence", Refused("mutually exclusive")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_cp_size": 4}}, "parallelism_config", "stops", "replicas that are not sharded", Refused("cannot be used with pure data parallelism")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}, "parallelism_config", "stops", "dp_shard 4 = 4 ranks, and num_processes is 8", Refused("does not match num_processes")),
    case("ddp", {"parallelism_config": {"parallelism_config_dp_replicate_size": 4}}, "parallelism_config", "stops", "dp_replicate 4 = 4 ranks, and num_processes is 8", Refused("does not match num_processes")),
    case("zero3", {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}, "parallelism_config", "stops", "dp_shard 4 = 4 ranks, and num_processes is 8", Refused("does not match num_processes")),
    case("fsdp1", {"parallelism_config": {"parallelism_config_dp_shard_size": 8}}, "parallelism_config", "stops", "FSDP1 does not take it", Refused("only compatible")),
    case("ddp", {"distributed_type": "NO", "num_processes": 1, "parallelism_config": {"parallelism_config_dp_shard_size": 2}}, "parallelism_config", "silent", "NO does not read it", Ignored("parallelism_config")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_replicate_size": 8}}, "parallelism_config.parallelism_config_dp_shard_size", "stops", "no ranks to shard over", Refused("no dimension for FSDP to shard across")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 4, "parallelism_config_tp_size": 2}}, "parallelism_config.parallelism_config_tp_size", "stops", "ReplicateParallel", OnRanks("test_tensor_parallelism_fails_or_does_nothing")),
    case("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 8, "parallelism_config_sp_size": 2}}, "parallelism_config.parallelism_config_sp_size", "silent", "see different batches", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("ddp", {"parallelism_config": {"parallelism_config_dp_shard_size": 8}}, "parallelism_config", "silent", "nothing is sharded", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("ddp", {"parallelism_config": {"parallelism_config_cp_size": 8}}, "parallelism_config.parallelism_config_cp_size", "stops", "with FSDP2 only", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("zero3", {"parallelism_config": {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4}}, "parallelism_config.parallelism_config_dp_replicate_size", "silent", "shards over all ranks", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("fsdp", {"parallelism_config": {"dp_shard_size": 8, "parallelism_config_dp_shard_size": 8}}, "parallelism_config.dp_shard_size", "silent", "nobody reads this key", Ignored("parallelism_config.dp_shard_size")),
]  # fmt: skip

SHARDING = [
    case("fsdp", {"fsdp_config.fsdp_version": 3}, "fsdp_config.fsdp_version", "stops", "no FSDP version 3", Refused("")),
    case("fsdp", {"fsdp_config.fsdp_version": GONE}, "fsdp_config.fsdp_reshard_after_forward", "silent", "without fsdp_version it is FSDP1", Shows(lambda found: (found["fsdp"]["fsdp_version"], found["fsdp"]["sharding_strategy"]) == ("1", "ShardingStrategy.FULL_SHARD"))),
    case("fsdp", {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_reshard_after_forward": False}, "fsdp_config.fsdp_reshard_after_forward", "silent", "FULL_SHARD by", Shows(lambda found: found["fsdp"]["sharding_strategy"] == "ShardingStrategy.FULL_SHARD")),
    *(
        case("fsdp", {f"fsdp_config.{key}": value}, f"fsdp_config.{key}", "silent", "FSDP2 never sees it", Shows(lambda found, name=name: found["fsdp"][name] == "None"))
        for key, name, value in (
            ("fsdp_sharding_strategy", "sharding_strategy", "SHARD_GRAD_OP"),
            ("fsdp_backward_prefetch", "backward_prefetch", "BACKWARD_PRE"),
            ("fsdp_forward_prefetch", "forward_prefetch", True),
            ("fsdp_use_orig_params", "use_orig_params", False),
            ("fsdp_sync_module_states", "sync_module_states", True),
        )
    ),
    case("fsdp", {"fsdp_config.fsdp_sync_module_states": False}, "fsdp_config.fsdp_sync_module_states", "stops", "the launcher refuses", Refused("fsdp_sync_module_states")),
    case("fsdp1", {"fsdp_config.fsdp_sharding_strategy": "FULL"}, "fsdp_config.fsdp_sharding_strategy", "stops", "did you mean 'FULL_SHARD'", Refused("FULL")),
    case("fsdp", {"fsdp_config.fsdp_offload_params": "maybe"}, "fsdp_config.fsdp_offload_params", "stops", "neither true nor false", Refused("invalid truth value")),
    case("fsdp", {"fsdp_config.fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "fsdp_config.fsdp_state_dict_type", "stops", "no LOCAL_STATE_DICT", Refused("LOCAL_STATE_DICT")),
    case("fsdp", {"fsdp_config.fsdp_reshard_after_foward": False}, "fsdp_config.fsdp_reshard_after_foward", "silent", "nobody reads this key", Ignored("fsdp_config.fsdp_reshard_after_foward")),
    case("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": GONE}, "fsdp_config.fsdp_auto_wrap_policy", "silent", "one unit", Shows(lambda found: found["fsdp"]["auto_wrap_policy"] == "None"), OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 0}, "fsdp_config.fsdp_min_num_params", "silent", "it means none", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": "1e8"}, "fsdp_config.fsdp_min_num_params", "stops", "not a whole number", Refused("invalid literal for int()")),
    case("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 10**9}, "fsdp_config.fsdp_min_num_params", "costly", "fewer than 1,000,000,000", Shows(lambda found: found["fsdp"]["min_num_params"] == "1000000000"), overrides=H100),
    case("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_WRAP"}, "fsdp_config.fsdp_auto_wrap_policy", "stops", "did you mean 'TRANSFORMER_BASED_WRAP'", Refused("Invalid auto wrap policy")),
    case("fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": GONE}, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "depends", "names its layers itself", OnRanks("test_accelerate_does_what_the_yaml_says")),
    case("fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "GPT2Block, LlamaDecoderLayer"}, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "stops", "called ' LlamaDecoderLayer'", Shows(lambda found: found["fsdp"]["transformer_cls_names_to_wrap"] == "['GPT2Block', ' LlamaDecoderLayer']")),
    case("fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "MistralDecoderLayer"}, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "stops", "is not the class of llama-3-8b's layers", OnRanks("test_accelerate_does_what_the_yaml_says"), overrides=H100),
    case("fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layr"}, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "stops", "no class 'Layr'; did you mean 'Layer'", OnRanks("test_accelerate_does_what_the_yaml_says"), overrides=Overrides(classes=("GPT", "Layer"), layer="Layer")),
    case("fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "GPT"}, "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "silent", "the layers are not units", OnRanks("test_accelerate_does_what_the_yaml_says"), overrides=Overrides(classes=("GPT", "Layer"), layer="Layer")),
    case("fsdp", {"fsdp_config.fsdp_activation_checkpointing_offload": True}, "fsdp_config.fsdp_activation_checkpointing_offload", "stops", "nothing is recomputed", Refused("requires `activation_checkpointing=True`")),
    case("fsdp1", {"fsdp_config.fsdp_activation_checkpointing": True, "fsdp_config.fsdp_activation_checkpointing_offload": True}, "fsdp_config.fsdp_activation_checkpointing_offload", "stops", "only FSDP2", Refused("requires `fsdp_version=2`")),
    case("fsdp", {"fsdp_config.fsdp_activation_checkpointing": True}, "fsdp_config.fsdp_activation_checkpointing", "silent", "an empty adapter is saved", OnRanks("test_accelerate_does_what_the_yaml_says"), overrides=Overrides(adapter=Adapter())),
]  # fmt: skip

IN_THE_YAML = [
    case("zero3", {"deepspeed_config.zero_stage": GONE}, "deepspeed_config.zero_stage", "silent", "it is stage 2", Shows(lambda found: found["deepspeed"]["zero_optimization"]["stage"] == 2)),
    case("zero3", {"deepspeed_config.zero_stage": 4}, "deepspeed_config.zero_stage", "stops", "there is no 4", Refused("stage")),
    case("zero3", {"deepspeed_config.offload_param_device": "gpu"}, "deepspeed_config.offload_param_device", "stops", "there is no 'gpu'", Refused("device")),
    case("zero3", {"deepspeed_config.zero_stage": 2, "deepspeed_config.offload_param_device": "cpu"}, "deepspeed_config.offload_param_device", "silent", "only stage 3 offloads it", Shows(lambda found: not found["weights_on_cpu"], "engine")),
    case("zero3", {"deepspeed_config.zero_stage": 0, "deepspeed_config.offload_optimizer_device": "cpu"}, "deepspeed_config.offload_optimizer_device", "stops", "refuses weights on a GPU", Shows(lambda found: found["cpu_adam_refuses"]), Refused("client provided optimizer", "engine")),
    case("zero3", {"deepspeed_config.offload_param_device": "nvme", "deepspeed_config.offload_param_nvme_path": "/local"}, "deepspeed_config.offload_param_nvme_path", "silent", "a folder called none", Shows(lambda found: found["deepspeed"]["zero_optimization"]["offload_param"]["nvme_path"] == "none")),
    case("zero3", {"deepspeed_config.zero3_save_16bit_model": False}, "deepspeed_config.zero3_save_16bit_model", "stops", "save_model raise", OnRanks("test_accelerate_does_what_the_yaml_says"), overrides=ACCELERATE),
    case("zero3", {"deepspeed_config.zero3_save_16bit_model": False}, "deepspeed_config.zero3_save_16bit_model", "depends", "Trainer saves shards", OnRanks("test_accelerate_does_what_the_yaml_says"), Shows(lambda found: found["saved_by_trainer"] == ["model", "shards"], "saving")),
    case("zero3", {"deepspeed_config.gradient_clipping": GONE}, "deepspeed_config.gradient_clipping", "silent", "clipped at norm 1.0", Shows(lambda found: found["deepspeed"]["gradient_clipping"] == "auto"), Shows(lambda found: found["clipping"] == 1.0, "accelerate"), overrides=ACCELERATE),
    case("zero3", {"deepspeed_config.gradient_clipping": GONE}, "deepspeed_config.gradient_clipping", "depends", "Trainer's max_grad_norm decides", Shows(lambda found: found["clipping"] == 0.25, "trainer"), Shows(lambda found: found["clipping"] == 1.0, "accelerate")),
    case("zero3", {"deepspeed_config.gradient_clipping": 0}, "deepspeed_config.gradient_clipping", "silent", "with 0 here gradients are clipped at norm 1.0", Shows(lambda found: "gradient_clipping" not in found["deepspeed"]), Shows(lambda found: found["clipping"] == 1.0, "accelerate"), Shows(lambda found: found["clipping"] == 1.0, "trainer")),
    case("zero3", {"deepspeed_config.gradient_clipping": "none"}, "deepspeed_config.gradient_clipping", "stops", "not a number", Refused("could not convert string to float")),
    case("zero3", {"deepspeed_config.ofload_optimizer_device": "cpu"}, "deepspeed_config.ofload_optimizer_device", "silent", "'cpu' has no effect", Ignored("deepspeed_config.ofload_optimizer_device")),
    case("zero3", {"deepspeed_config.seq_parallel_communication_data_type": "bf16"}, "deepspeed_config.seq_parallel_communication_data_type", "silent", "has no effect", Ignored("deepspeed_config.seq_parallel_communication_data_type")),
]  # fmt: skip

ADAM = {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}
IN_THE_JSON = [
    case("json", {"gradient_acumulation_steps": 8}, "gradient_acumulation_steps", "silent", "8 has no effect", Ignored("gradient_acumulation_steps")),
    case("json", {"elasticity": {}}, "elasticity", "stops", "dropped", Refused("Elastic training has been removed")),
    case("json", {"zero_optimization.mics_shard_size": 4}, "zero_optimization.mics_shard_size", "stops", "dropped", Refused("MiCS")),
    case("json", {"zero_optimization.ofload_param": {}}, "zero_optimization.ofload_param", "stops", "'offload_param'", Refused("ofload_param")),
    case("json", {"zero_optimization.offload_param": {"device": "cpu", "pinned": True}}, "zero_optimization.offload_param.pinned", "stops", "no such key", Refused("pinned")),
    case("json", {"bf16.enable": True}, "bf16.enable", "stops", "did you mean 'enabled'", Refused("Extra inputs are not permitted")),
    case("json", {"compile": {"disable": False}}, "compile.disable", "stops", "no such key", Refused("Extra inputs are not permitted")),
    case("json", {"zero_optimization.gather_16bit_weights_on_model_save": True}, "zero_optimization.gather_16bit_weights_on_model_save", "stops", "by another name", Refused("Extra inputs are not permitted")),
    case("json", {"train_batch_size": 6}, "train_batch_size", "stops", "6 does not divide by 2 a GPU times 4 steps", Refused("Check batch related parameters", "json")),
    case("json", {}, "train_batch_size", "stops", "8 is not 2 a GPU times 4 steps times 16 ranks = 128", Refused("Check batch related parameters", "json", 16), overrides=Overrides(num_processes=16)),
    case("json", {"train_micro_batch_size_per_gpu": GONE}, "train_batch_size", "stops", "8 does not divide by 3 ranks times 4 steps", Refused("", "json", 3), overrides=Overrides(num_processes=3)),
    case("json", {"train_batch_size": GONE, "train_micro_batch_size_per_gpu": GONE}, "train_micro_batch_size_per_gpu", "stops", "neither", Refused("needs to be provided", "json")),
    case("json", {"train_micro_batch_size_per_gpu": "2"}, "train_micro_batch_size_per_gpu", "stops", "is a text", Refused("TypeError", "json")),
    case("json", {"gradient_clipping": "1.0"}, "gradient_clipping", "stops", "is a text", Refused("TypeError")),
    case("json", {"gradient_accumulation_steps": "auto"}, "gradient_accumulation_steps", "stops", "deepspeed.initialize stops at it", Refused("TypeError"), overrides=PLAIN),
    case("json", {"gradient_accumulation_steps": "auto", "train_batch_size": GONE}, "gradient_accumulation_steps", "depends", "filled in by Trainer or Accelerate", Refused("TypeError"), Shows(lambda found: not found["refused"], "accelerate")),
    case("json", {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}}, "optimizer.params.lr", "stops", "deepspeed.initialize stops at it", Refused("TypeError"), overrides=PLAIN),
    case("json", {"bf16.enabled": "auto"}, "bf16.enabled", "silent", "trains in fp32", Shows(lambda found: found["width"] == "float32"), overrides=PLAIN),
    case("json", {"bf16.enabled": "auto"}, "bf16.enabled", "depends", "filled in by Trainer or Accelerate", Shows(lambda found: found["width"] == "float32"), Shows(lambda found: found["bf16"], "trainer")),
    case("json", {"fp16": {"enabled": True}}, "fp16.enabled", "stops", "both on", Refused("cannot be simultaneously enabled")),
    case("json", {"bf16": GONE}, "bf16.enabled", "costly", "everything is computed in fp32", Shows(lambda found: found["width"] == "float32"), overrides=PLAIN),
    case("json", {"bf16": GONE}, "bf16.enabled", "depends", "unless Trainer or Accelerate is told otherwise", Shows(lambda found: found["width"] == "float32"), Shows(lambda found: found["bf16"], "trainer")),
    case("json", {"bf16": {"check_grad_overflow": True}}, "bf16.enabled", "silent", "not switched on", Shows(lambda found: found["width"] == "float32"), Shows(lambda found: not found["bf16"], "trainer")),
    case("json", {"gradient_clipping": GONE}, "gradient_clipping", "silent", "clips gradients at norm 1.0", *(Shows(lambda found: found["clipping"] == 1.0, reader) for reader in ("", "accelerate", "trainer"))),
    case("json", {"gradient_clipping": "auto"}, "gradient_clipping", "silent", "becomes 1.0 under Accelerate", Shows(lambda found: found["clipping"] == 1.0, "accelerate"), overrides=ACCELERATE),
    case("json", {"gradient_clipping": "auto"}, "gradient_clipping", "depends", "max_grad_norm under Trainer", Shows(lambda found: found["clipping"] == 1.0, "accelerate"), Shows(lambda found: found["clipping"] == 0.25, "trainer")),
    case("json", {"zero_optimization": GONE}, "zero_optimization", "depends", "no ZeRO (stage 0)", Shows(lambda found: found["stage"] == 0), Refused("ZeRO optimization config", "accelerate"), Refused("ZeRO optimization config", "trainer")),
    case("json", {"zero_optimization": GONE}, "zero_optimization", "stops", "refuse the file", Refused("ZeRO optimization config", "accelerate"), overrides=ACCELERATE),
    case("json", {"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu", "stops", "0 is not a whole number of at least 1", Refused("has to be greater than 0", "json")),
    case("json", {"zero_optimization.reduce_bucket_size": "big"}, "zero_optimization.reduce_bucket_size", "stops", "'big' is not a whole number of at least 1", Refused("valid integer")),
    case("json", {"zero_optimization.reduce_bucket_size": 0}, "zero_optimization.reduce_bucket_size", "stops", "0 is not a whole number of at least 1", Refused("greater than 0")),
    case("json", {"zero_optimization.stage": 4}, "zero_optimization.stage", "stops", "there is no stage 4", Refused("stage")),
    case("json", {"zero_optimization.stage": "auto"}, "zero_optimization.stage", "silent", "shards nothing", Shows(lambda found: found["stage"] == 0), overrides=PLAIN),
    case("json", {"zero_optimization.stage": "auto"}, "zero_optimization.stage", "depends", "2 by default", Shows(lambda found: found["stage"] == 0), Shows(lambda found: found["stage"] == 2, "accelerate")),
    case("json", {"zero_optimization.cpu_offload": True, "zero_optimization.offload_optimizer": {"device": "cpu"}}, "zero_optimization.cpu_offload", "stops", "by its old name", Refused("Cannot provide deprecated parameter")),
    case("json", {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "zero_optimization.offload_param", "silent", "cpu at stage 2: only stage 3 offloads it", Shows(lambda found: not found["weights_on_cpu"])),
    case("json", {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer", "silent", "only stage 1 and above", Shows(lambda found: not found["states_on_cpu"])),
    case("json", {"zero_force_ds_cpu_optimizer": GONE, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer", "stops", "refuses weights on a GPU", Refused("client provided optimizer")),
    case("json", {"zero_optimization.stage": 2}, "zero_optimization.stage3_gather_16bit_weights_on_model_save", "silent", "stage is 2", Ignored("zero_optimization.stage3_gather_16bit_weights_on_model_save")),
    case("json", {"zero_optimization": {"stage": 3}}, "zero_optimization.stage3_gather_16bit_weights_on_model_save", "stops", "no rank has the weights", Shows(lambda found: not found["saved"]), Shows(lambda found: "Cannot get 16bit model weights" in found["state_dict"], "accelerate"), overrides=ACCELERATE),
    case("json", {"zero_optimization": {"stage": 3}}, "zero_optimization.stage3_gather_16bit_weights_on_model_save", "depends", "Trainer saves shards", Shows(lambda found: not found["saved"]), Shows(lambda found: found["saved_by_trainer"] == ["model", "shards"], "saving")),
    case("json", {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}}, "optimizer.type", "stops", "has dropped OneBitAdam", Refused("not a supported DeepSpeed Optimizer")),
    case("json", {"optimizer": {"type": "sgd", "params": {"lr": 1e-3}}}, "optimizer.type", "stops", "did you mean 'SGD'", Refused("not a supported DeepSpeed Optimizer")),
    case("json", {"optimizer": ADAM}, "optimizer.type", "silent", "decoupled weight decay", Shows(lambda found: found["optimizer"] == "AdamW")),
    case("json", {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "max_grad_norm": 1}}}, "optimizer.params.max_grad_norm", "stops", "refuses it here", Refused("'max_grad_norm' is not supported")),
    case("json", {"activation_checkpointing": {"partition_activations": True}}, "activation_checkpointing", "depends", "recomputes nothing by itself", Shows(lambda found: not found["recomputes"]), Ignored("activation_checkpointing")),
]  # fmt: skip

CASES = [*WORDS, *PROCESSES, *MESHES, *SHARDING, *IN_THE_YAML, *IN_THE_JSON]

RIGHT = [
    # good file, what is changed, overrides, and what shows that nothing is wrong with it
    ("json", {"gradient_clipping": "auto"}, TRAINER, Shows(lambda found: found["clipping"] == 0.25, "trainer")),
    ("zero3", {"deepspeed_config.gradient_clipping": GONE}, TRAINER, Shows(lambda found: found["clipping"] == 0.25, "trainer")),
    ("json", {"bf16.enabled": "auto"}, TRAINER, Shows(lambda found: found["bf16"], "trainer")),
    ("json", {"zero_optimization": GONE}, PLAIN, Shows(lambda found: found["stage"] == 0, "engine")),
    ("json", {"zero_optimization": {"stage": 3, "gather_16bit_weights_on_model_save": True, "max_live_parameters": 0, "max_reuse_distance": 0}}, None, Shows(lambda found: found["saved"], "engine")),
    ("json", {"zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}}, None, Shows(lambda found: found["saved"], "engine")),
    ("json", {"zero_optimization": True}, None, Shows(lambda found: found["stage"] == 1, "engine")),
    ("json", {"zero_optimization": {"stage": 2, "cpu_offload": True}}, None, Shows(lambda found: found["states_on_cpu"], "engine")),
    ("json", {"zero_optimization": {"stage": "2", "overlap_comm": False}}, None, Shows(lambda found: found["stage"] == 2, "engine")),
    ("json", {"_comment": "ours", "// why": "ours too"}, None, Ignored("_comment", "engine")),
    ("json", {"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 0}}, None, Shows(lambda found: found["optimizer"] == "SGD", "engine")),
    ("json", {"zero_optimization": {"stage": 2, "no_such_key": "auto"}}, None, Shows(lambda found: found["stage"] == 2, "engine")),
    ("ddp", {"distributed_type": "MULTI_XPU"}, None, Shows(lambda found: found["launcher"] == "multi_gpu_launcher", "yaml")),
    ("ddp", {"distributed_type": "NO", "num_processes": GONE}, None, Shows(lambda found: found["launcher"] == "simple_launcher", "yaml")),
    ("ddp", {"distributed_type": False, "num_processes": 1}, None, Shows(lambda found: found["launcher"] == "simple_launcher", "yaml")),
    ("ddp", {"num_processes": "8"}, None, Shows(lambda found: found["each_node"] == "8", "yaml")),
    ("ddp", {"mixed_precision": "fp8", "fp8_config": {"backend": "TE", "fp8_format": "E4M3", "amax_history_len": 16}}, None, Shows(lambda found: found["environment"]["ACCELERATE_FP8_FORMAT"] == "E4M3", "yaml")),
    ("ddp", {"mixed_precision": "BF16"}, None, Shows(lambda found: not found["refused"], "yaml")),
    ("ddp", {"parallelism_config": {"parallelism_config_dp_replicate_size": 8}}, None, Shows(lambda found: not found["refused"], "yaml")),
    ("fsdp1", {}, None, Shows(lambda found: found["fsdp"]["sharding_strategy"] == "ShardingStrategy.FULL_SHARD", "yaml")),
    ("fsdp1", {"fsdp_config.fsdp_sharding_strategy": 2}, None, Shows(lambda found: found["fsdp"]["sharding_strategy"] == "ShardingStrategy.SHARD_GRAD_OP", "yaml")),
    ("fsdp", {"fsdp_config": {"version": 2, "auto_wrap_policy": "transformer_based_wrap", "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}, None, Shows(lambda found: found["fsdp"]["fsdp_version"] == "2", "yaml")),
    ("fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 4}}, None, Shows(lambda found: found["mesh"]["cp_size"] == 4, "yaml")),
    ("fsdp", {"parallelism_config": {"parallelism_config_cp_size": 8}}, None, Shows(lambda found: found["mesh"]["cp_size"] == 8, "yaml")),
    ("zero3", {"parallelism_config": {"parallelism_config_sp_size": 4, "parallelism_config_dp_shard_size": 2, "parallelism_config_sp_attn_implementation": "flash_attention_2"}}, None, Shows(lambda found: found["mesh"]["sp_size"] == 4, "yaml")),
    ("zero3", {"deepspeed_config.zero3_init_flag": False}, None, Shows(lambda found: found["sharded"] and not found["flag"], "loading")),
    ("zero3", {"deepspeed_config.zero_stage": "3"}, None, Shows(lambda found: found["deepspeed"]["zero_optimization"]["stage"] == 3, "yaml")),
    ("zero3", {"num_machines": 2, "deepspeed_config.deepspeed_hostfile": "hosts"}, None, Shows(lambda found: "hosts" in found["command"], "yaml")),
]  # fmt: skip
"""Files that people write, with nothing wrong: what looks odd is what the library wants or takes."""
