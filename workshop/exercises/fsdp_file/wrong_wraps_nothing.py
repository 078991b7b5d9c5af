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
