"""Each mistake is seen in a file that has it, named with its cure, and gone when the cure is taken."""

from __future__ import annotations

import copy

import pytest

from workshop.configs import Given, find_mistakes
from workshop.configs.silent_mistakes import Mistake
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
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
}
GOOD = {"ddp": DDP, "fsdp": FSDP, "zero3": ZERO3, "json": JSON}
H100 = Given(model="llama-3-8b", device="H100")
GONE = object()


def changed(config, changes):
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


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_the_good_ones(name):
    assert find_mistakes(GOOD[name]) == []
    assert find_mistakes(GOOD[name], H100) == []


# good file, what is changed, what is known beside it, key, kind, a part of what is told
BROKEN = [
    ("ddp", {"distributed_type": "MULTI_CPU"}, None, "distributed_type", "silent", "starts one process"),
    ("ddp", {"distributed_type": "NO"}, None, "distributed_type", "silent", "whatever num_processes says (8)"),
    ("ddp", {"use_cpu": True}, None, "use_cpu", "silent", "each believes that it is rank 0 of 1"),
    ("fsdp", {"use_cpu": True}, None, "use_cpu", "silent", "nothing is sharded"),
    ("fsdp", {}, Given(device="this-machine"), "use_cpu", "silent", "without GPUs FSDP starts 8 processes"),
    ("zero3", {"use_cpu": True}, None, "use_cpu", "stops", "a batch for one process"),
    ("ddp", {"distributed_type": False}, None, "distributed_type", "stops", "false to YAML"),
    ("ddp", {"mixed_precision": False}, None, "mixed_precision", "stops", "false to YAML"),
    ("ddp", {"distributed_type": GONE}, None, "distributed_type", "stops", "missing"),
    ("ddp", {"num_proceses": 8}, None, "num_proceses", "stops", "did you mean 'num_processes'"),
    ("ddp", {"num_machines": 3}, None, "num_processes", "silent", "each starts 2, 6 in all"),
    ("ddp", {"num_machines": 4}, H100, "num_processes", "silent", "6 of its 8 devices stay idle"),
    ("ddp", {"num_machines": 2, "machine_rank": 0}, None, "main_process_ip", "stops", "a host called None"),
    ("ddp", {"num_machines": 2, "machine_rank": 0}, None, "machine_rank", "stops", "number 0"),
    ("ddp", {"fsdp_config": {"fsdp_version": 2}}, None, "fsdp_config", "silent", "nobody reads this section"),
    ("fsdp", {"deepspeed_config": {"zero_stage": 3}}, None, "deepspeed_config", "silent", "nobody reads this section"),
    ("fsdp", {"fsdp_config.fsdp_version": GONE}, None, "fsdp_config.fsdp_version", "silent", "it is FSDP1"),
    ("fsdp", {"fsdp_config.fsdp_version": 1}, None, "fsdp_config.fsdp_reshard_after_forward", "silent", "FULL_SHARD by"),
    (
        "fsdp", {"fsdp_config.fsdp_sharding_strategy": "SHARD_GRAD_OP"}, None,
        "fsdp_config.fsdp_sharding_strategy", "silent", "FSDP2 never sees it",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_reshard_after_foward": False}, None,
        "fsdp_config.fsdp_reshard_after_foward", "silent", "nobody reads this key",
    ),
    ("fsdp", {"fsdp_config.fsdp_auto_wrap_policy": GONE}, None, "fsdp_config.fsdp_auto_wrap_policy", "silent", "one unit"),
    (
        "fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 0}, None,
        "fsdp_config.fsdp_min_num_params", "silent", "it means none",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_config.fsdp_min_num_params": 10**9}, H100,
        "fsdp_config.fsdp_min_num_params", "costly", "fewer than 1,000,000,000",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_WRAP"}, None,
        "fsdp_config.fsdp_auto_wrap_policy", "stops", "did you mean 'TRANSFORMER_BASED_WRAP'",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": GONE}, None,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "silent", "unless the model is one of transformers'",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "MistralDecoderLayer"}, H100,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "stops", "is not the class of llama-3-8b's layers",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "Layr"}, Given(classes=("GPT", "Layer"), layer="Layer"),
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "stops", "no class 'Layr'; did you mean 'Layer'",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": "GPT"}, Given(classes=("GPT", "Layer"), layer="Layer"),
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "silent", "the layers are not units",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_activation_checkpointing": True}, Given(adapter=Adapter()),
        "fsdp_config.fsdp_activation_checkpointing", "silent", "an empty adapter is saved",
    ),
    (
        "fsdp", {"fsdp_config.fsdp_activation_checkpointing_offload": True}, None,
        "fsdp_config.fsdp_activation_checkpointing_offload", "stops", "nothing is recomputed",
    ),
    (
        "fsdp", {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}, None,
        "parallelism_config", "stops", "dp_shard 4 = 4 ranks, and num_processes is 8",
    ),
    (
        "fsdp", {"parallelism_config": {"dp_shard_size": 8, "parallelism_config_dp_shard_size": 8}}, None,
        "parallelism_config.dp_shard_size", "silent", "nobody reads this key",
    ),
    (
        "fsdp", {"parallelism_config": {"parallelism_config_tp_size": 8}}, None,
        "parallelism_config.parallelism_config_tp_size", "stops", "ReplicateParallel",
    ),
    (
        "ddp", {"parallelism_config": {"parallelism_config_dp_shard_size": 8}}, None,
        "parallelism_config", "stops", "FSDP2 only",
    ),
    ("zero3", {"deepspeed_config.zero_stage": GONE}, None, "deepspeed_config.zero_stage", "silent", "it is stage 2"),
    (
        "zero3", {"deepspeed_config.gradient_clipping": GONE}, None,
        "deepspeed_config.gradient_clipping", "silent", "clipped at norm 1.0",
    ),
    (
        "zero3", {"deepspeed_config.gradient_clipping": 0}, None,
        "deepspeed_config.gradient_clipping", "silent", "with 0 here gradients are clipped at norm 1.0",
    ),
    (
        "zero3", {"deepspeed_config.zero3_save_16bit_model": False}, None,
        "deepspeed_config.zero3_save_16bit_model", "stops", "at its end accelerator.get_state_dict",
    ),
    (
        "zero3", {"deepspeed_config.zero3_init_flag": False}, None,
        "deepspeed_config.zero3_init_flag", "costly", "eight models",
    ),
    (
        "zero3", {"deepspeed_config.zero_stage": 2, "deepspeed_config.offload_param_device": "cpu"}, None,
        "deepspeed_config.offload_param_device", "silent", "only stage 3 offloads it",
    ),
    (
        "zero3", {"deepspeed_config.zero_stage": 0, "deepspeed_config.offload_optimizer_device": "cpu"}, None,
        "deepspeed_config.offload_optimizer_device", "silent", "only stage 1 and above",
    ),
    (
        "zero3", {"deepspeed_config.ofload_optimizer_device": "cpu"}, None,
        "deepspeed_config.ofload_optimizer_device", "silent", "'cpu' has no effect",
    ),
    ("json", {"gradient_acumulation_steps": 8}, None, "gradient_acumulation_steps", "silent", "8 has no effect"),
    ("json", {"zero_optimization.ofload_param": {}}, None, "zero_optimization.ofload_param", "stops", "'offload_param'"),
    ("json", {"elasticity": {}}, None, "elasticity", "stops", "dropped"),
    ("json", {"train_batch_size": 60}, None, "train_batch_size", "stops", "60 does not divide by 2 a GPU times 4 steps"),
    (
        "json", {}, Given(num_processes=16),
        "train_batch_size", "stops", "64 is not 2 a GPU times 4 steps times 16 ranks = 128",
    ),
    (
        "json", {"train_batch_size": GONE, "train_micro_batch_size_per_gpu": GONE}, None,
        "train_micro_batch_size_per_gpu", "stops", "neither",
    ),
    ("json", {"fp16.enabled": True}, None, "fp16.enabled", "stops", "both on"),
    ("json", {"bf16.enabled": "auto"}, None, "bf16.enabled", "silent", "trains in fp32"),
    ("json", {"bf16": GONE}, None, "bf16.enabled", "costly", "everything is computed in fp32"),
    ("json", {"bf16": {"check_grad_overflow": True}}, None, "bf16.enabled", "silent", "not switched on"),
    ("json", {"gradient_clipping": GONE}, None, "gradient_clipping", "silent", "clips gradients at norm 1.0"),
    ("json", {"gradient_clipping": "auto"}, None, "gradient_clipping", "silent", "becomes 1.0 under Accelerate"),
    ("json", {"zero_optimization": GONE}, None, "zero_optimization", "costly", "stage 0"),
    (
        "json", {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, None,
        "zero_optimization.offload_param", "silent", "cpu at stage 2: only stage 3 offloads it",
    ),
    (
        "json", {"zero_optimization.stage": 2}, None,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save", "silent", "stage is 2",
    ),
    (
        "json", {"zero_optimization": {"stage": 3}}, None,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save", "stops", "no rank has the weights",
    ),
    ("json", {"optimizer": {"type": "OneBitAdam"}}, None, "optimizer.type", "stops", "has dropped OneBitAdam"),
    ("json", {"optimizer": {"type": "Adam"}}, None, "optimizer.type", "silent", "decoupled weight decay"),
    (
        "json", {"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}}, None,
        "optimizer.params.max_grad_norm", "stops", "refuses it here",
    ),
    (
        "json", {"activation_checkpointing": {"partition_activations": True}}, None,
        "activation_checkpointing", "silent", "recomputes nothing by itself",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("good", "changes", "given", "key", "kind", "told"), BROKEN)
def test_it_is_found(good, changes, given, key, kind, told):
    found = find_mistakes(changed(GOOD[good], changes), given)
    here = [mistake for mistake in found if mistake.key == key and told in mistake.what]
    assert here, [str(mistake) for mistake in found]
    assert here[0].kind == kind
    assert here[0].cure


def test_said_twice(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    )
    path = tmp_path / "run.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero_stage: 2\n"
    )
    first, *others = find_mistakes(path)
    assert "must not: zero_stage, mixed_precision" in first.what
    assert "gradient_clipping" in {mistake.key for mistake in others}  # of the JSON


def test_a_mistake_reads_well():
    mistake = find_mistakes(changed(DDP, {"distributed_type": "MULTI_CPU"}))[0]
    assert str(mistake) == (
        "silent: distributed_type: MULTI_CPU starts one process, whatever num_processes says (8), and ends with "
        "exit code 0\n    cure: torchrun --nproc-per-node 8 train.py, with ACCELERATE_USE_CPU=true set"
    )
    with pytest.raises(ValueError, match="unknown kind of mistake 'loud'"):
        Mistake("key", "loud", "", "")
