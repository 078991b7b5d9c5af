def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_version",
    }
