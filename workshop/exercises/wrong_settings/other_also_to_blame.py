def wrong_settings():
    named = "use_cpu fsdp_config.fsdp_auto_wrap_policy num_machines deepspeed_config.zero3_save_16bit_model"
    named += " nothing fsdp_reshard_after_forward"
    return dict(zip("abcdef", named.split(), strict=True))
