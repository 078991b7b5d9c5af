def wrong_settings() -> dict[str, str]:
    """For each file the key that is wrong or missing, such as "num_machines"; "nothing" for the right one."""
    return {
        "a": "use_cpu",  # not read for FSDP: each process is rank 0 of 1
        "b": "fsdp_auto_wrap_policy",  # missing: nothing is wrapped
        "c": "num_processes",  # it counts all machines: 32
        "d": "zero3_save_16bit_model",  # missing: no rank has the weights to save
        "e": "nothing",
        "f": "fsdp_sharding_strategy",  # a word of FSDP1: FSDP2 wants fsdp_reshard_after_forward: false
    }
