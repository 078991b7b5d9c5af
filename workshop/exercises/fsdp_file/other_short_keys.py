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
