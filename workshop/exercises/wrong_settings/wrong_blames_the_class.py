def wrong_settings():
    return {
        "a": "distributed_type",
        "b": "fsdp_transformer_layer_cls_to_wrap",
        "c": "num_processes",
        "d": "zero3_save_16bit_model",
        "e": "nothing",
        "f": "fsdp_sharding_strategy",
    }
