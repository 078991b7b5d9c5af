def fsdp_file(num_nodes: int, gpus_per_node: int, layer: str) -> dict:
    """FSDP2 over all GPUs, a unit for each `layer`; weights stay until backward."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": num_nodes,
        "num_processes": ...,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": ...,
            "fsdp_reshard_after_forward": ...,
            "fsdp_auto_wrap_policy": ...,
            "fsdp_transformer_layer_cls_to_wrap": ...,
        },
    }
