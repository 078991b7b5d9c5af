"""Every key that Accelerate 1.15 and DeepSpeed 0.19 know, so that a misspelt one can be told.

Both are strict in some places and blind in others. Accelerate refuses an unknown key at the top of its YAML
and never looks at one inside ``fsdp_config`` or ``deepspeed_config``; DeepSpeed refuses one inside
``zero_optimization`` and never looks at one at the top of its JSON. A test holds these lists against the
installed versions.
"""

from __future__ import annotations

ACCELERATE = """
    compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
    gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function
    enable_cpu_affinity fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config
    mpirun_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm
    tpu_env dynamo_config fp16 dynamo_backend
""".split()
"""Top of the YAML; the last two are old names that Accelerate still translates."""

FSDP = """
    fsdp_version fsdp_sharding_strategy fsdp_reshard_after_forward fsdp_offload_params fsdp_min_num_params
    fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type
    fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states
    fsdp_activation_checkpointing fsdp_activation_checkpointing_offload fsdp_ignored_modules
""".split()

FSDP1_ONLY = {
    "fsdp_sharding_strategy": "fsdp_reshard_after_forward: true (FULL_SHARD) or false (SHARD_GRAD_OP), and "
    "parallelism_config for HYBRID_SHARD",
    "fsdp_backward_prefetch": "nothing: FSDP2 prefetches by itself",
    "fsdp_forward_prefetch": "nothing: FSDP2 prefetches by itself",
    "fsdp_use_orig_params": "nothing: FSDP2 always does",
    "fsdp_sync_module_states": "nothing: Accelerate sends the weights itself",
}
"""Keys that mean nothing under ``fsdp_version: 2``, and what to write instead."""

ACCELERATE_DEEPSPEED = """
    zero_stage gradient_accumulation_steps gradient_clipping offload_optimizer_device offload_param_device
    offload_optimizer_nvme_path offload_param_nvme_path zero3_init_flag zero3_save_16bit_model
    deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_multinode_launcher deepspeed_moe_layer_cls_names
""".split()

PARALLELISM = """
    parallelism_config_dp_replicate_size parallelism_config_dp_shard_size parallelism_config_tp_size
    parallelism_config_cp_size parallelism_config_cp_backend parallelism_config_cp_comm_strategy
    parallelism_config_sp_size parallelism_config_sp_backend parallelism_config_sp_seq_length
    parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation
""".split()

SECTIONS = {
    "fsdp_config": FSDP,
    "deepspeed_config": ACCELERATE_DEEPSPEED,
    "parallelism_config": PARALLELISM,
}

DEEPSPEED = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps managed_gradient_accumulation
    gradient_clipping zero_optimization bf16 bfloat16 fp16 torch_autocast optimizer scheduler data_types
    communication_data_type seq_parallel_communication_data_type prescale_gradients gradient_predivide_factor
    gradient_allreduce_op disable_allgather zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    activation_checkpointing checkpoint datastates_ckpt aio compile tensor_parallel expert_parallel pipeline
    sequence_parallel_size use_data_before_expert_parallelism data_efficiency dataloader_drop_last
    hybrid_engine weight_quantization autotuning flops_profiler comms_logger tensorboard wandb csv_monitor
    comet steps_per_print wall_clock_breakdown memory_breakdown timers log_level dump_state disable_python_gc
    vocabulary_size
""".split()
"""Top of the JSON."""

DEEPSPEED_REMOVED = """
    nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop
""".split()
"""Keys that DeepSpeed 0.19 refuses: it has dropped what they switched on."""

ZERO = """
    stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce
    allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights
    elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param
    cpu_offload_use_pin_memory cpu_offload stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential
    stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1 round_robin_gradients
    parameter_alignment zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
    zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint override_module_apply
    log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module
""".split()
