# %% other: also_to_blame
def wrong_settings():
    named = "distributed_type fsdp_config.fsdp_auto_wrap_policy num_machines"
    named += " deepspeed_config.zero3_save_16bit_model nothing fsdp_reshard_after_forward"
    return dict(zip("abcdef", named.split(), strict=True))


# %% wrong: trusts_a
# message: Which launchers read `use_cpu`?
def wrong_settings():
    return {
        "a": "nothing",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_sharding_strategy",
    }


# %% wrong: blames_the_class
# message: decides whether anything is wrapped
def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_transformer_layer_cls_to_wrap",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_sharding_strategy",
    }


# %% wrong: finds_nothing_in_c
# message: counts the processes of all machines
def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "nothing",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_sharding_strategy",
    }


# %% wrong: blames_the_init_flag
# message: no rank has all weights
def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_init_flag",
        "e": "nothing",
        "f": "fsdp_sharding_strategy",
    }


# %% wrong: distrusts_the_right_one
# message: and so is the rest
def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "offload_optimizer_device",
        "f": "fsdp_sharding_strategy",
    }


# %% wrong: another_version
# message: that key belongs to FSDP1
def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_auto_wrap_policy",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_version",
    }


# %% wrong: a_list
# message: wanted a dictionary
def wrong_settings():
    return ["a"]
