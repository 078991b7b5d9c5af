def wrong_settings():
    named = "distributed_type fsdp_config.fsdp_auto_wrap_policy num_machines"
    named += " deepspeed_config.zero3_save_16bit_model nothing fsdp_reshard_after_forward"
    return dict(zip("abcdef", named.split(), strict=True))
