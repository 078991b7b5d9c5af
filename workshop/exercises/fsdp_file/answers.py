# %% other: short_keys
def fsdp_file(num_nodes, gpus_per_node, layer):
    fsdp = {
        "version": "2",
        "reshard_after_forward": "false",
        "auto_wrap_policy": "transformer_based_wrap",
        "transformer_layer_cls_to_wrap": layer,
    }
    return {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": fsdp,
        "num_machines": num_nodes,
        "num_processes": gpus_per_node * num_nodes,
    }


# %% wrong: processes_of_one_node
# message: stay idle
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate file: FSDP2 over all GPUs, a unit for each `layer`, weights kept until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer,
        },
    }


# %% wrong: fsdp1
# message: FSDP1 does not read False here
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate file: FSDP2 over all GPUs, a unit for each `layer`, weights kept until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": num_nodes * gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer,
        },
    }


# %% wrong: gathers_twice
# message: wanted them kept from forward to backward (stage 2)
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate configuration: FSDP2 over all GPUs, a unit for each `layer`, weights gathered twice."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": num_nodes * gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer,
        },
    }


# %% wrong: wraps_nothing
# message: nothing is wrapped
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate file: FSDP2 over all GPUs, a unit for each `layer`, weights kept until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": num_nodes * gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "NO_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": layer,
        },
    }


# %% wrong: only_llama
# message: is not the class of qwen3-8b's layers
def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """An Accelerate file: FSDP2 over all GPUs, a unit for each `layer`, weights kept until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": num_nodes * gpus_per_node,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": False,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        },
    }
