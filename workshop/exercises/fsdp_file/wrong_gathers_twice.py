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
