def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "offload_optimizer_device",
        "f": "fsdp_sharding_strategy",
    }
