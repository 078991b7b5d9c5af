"""Every key and every choice that Accelerate 1.15 and DeepSpeed 0.19 know, so that a wrong one can be told.

Both are strict in some places and blind in others. Accelerate refuses an unknown key at the top of its YAML;
inside a section it hands every key to its launcher as a flag, and a key that is no flag has no effect.
DeepSpeed refuses an unknown key inside the sections that are a model of pydantic's (`STRICT`), and never
looks at one at the top of its JSON. Some keys of a strict section have a second name: the field's own,
without the ``stage3_`` that its documentation writes.

Nothing is imported here, so that a file can be read anywhere; a test holds every list equal to the classes,
enums and parsers of the installed versions (`tests/configs/test_known_keys.py`).
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

SAID_IN_THE_JSON = """
    gradient_accumulation_steps gradient_clipping zero_stage offload_optimizer_device offload_param_device
    offload_param_nvme_path offload_optimizer_nvme_path zero3_save_16bit_model mixed_precision
""".split()
"""What Accelerate refuses in its YAML where ``deepspeed_config_file`` names a JSON that says it."""

PARALLELISM = """
    parallelism_config_dp_replicate_size parallelism_config_dp_shard_size parallelism_config_tp_size
    parallelism_config_cp_size parallelism_config_cp_backend parallelism_config_cp_comm_strategy
    parallelism_config_sp_size parallelism_config_sp_backend parallelism_config_sp_seq_length
    parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation
""".split()

FP8 = """
    fp8_backend fp8_opt_level fp8_format fp8_amax_history_len fp8_amax_compute_algo fp8_interval fp8_margin
    fp8_override_linear_precision fp8_use_autocast_during_eval fp8_enable_fsdp_float8_all_gather
    fp8_pad_inner_dim
""".split()
DYNAMO = """
    dynamo_backend dynamo_mode dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
""".split()
MEGATRON_LM = """
    megatron_lm_tp_degree megatron_lm_pp_degree megatron_lm_num_micro_batches megatron_lm_gradient_clipping
    megatron_lm_sequence_parallelism megatron_lm_recompute_activations megatron_lm_recompute_granularity
    megatron_lm_recompute_method megatron_lm_recompute_num_layers megatron_lm_use_distributed_optimizer
    megatron_lm_attention_backend megatron_lm_attention_dropout megatron_lm_hidden_dropout
    megatron_lm_attention_softmax_in_fp32 megatron_lm_calculate_per_token_loss
    megatron_lm_context_parallel_size megatron_lm_decoder_last_pipeline_num_layers megatron_lm_eod_mask_loss
    megatron_lm_expert_model_parallel_size megatron_lm_expert_tensor_parallel_size megatron_lm_no_load_optim
    megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload megatron_lm_overlap_cpu_optimizer_d2h_h2d
    megatron_lm_use_custom_fsdp megatron_lm_use_precision_aware_optimizer
    megatron_lm_use_rotary_position_embeddings
""".split()

OTHER_FLAGS = """
    aws_access_key_id aws_secret_access_key config_file cpu debug downcast_bf16 enable_cpu_affinity env
    gpu_ids help log_dir machine_rank main_process_ip main_process_port main_training_function max_restarts
    mixed_precision module monitor_interval mpirun_hostfile multi_gpu no_python num_cpu_threads_per_process
    num_machines num_processes quiet rdzv_backend rdzv_conf role same_network tee tpu tpu_use_cluster
    tpu_use_sudo training_script training_script_args use_deepspeed use_fsdp use_megatron_lm
    use_parallelism_config vm
""".split()
"""The launcher's flags of no section. It takes any of them from any section, which nobody should rely on."""

SECTIONS = {
    "fsdp_config": (FSDP, "fsdp_"),
    "deepspeed_config": (ACCELERATE_DEEPSPEED, ""),
    "parallelism_config": (PARALLELISM, ""),
    "fp8_config": (FP8, "fp8_"),
    "dynamo_config": (DYNAMO, "dynamo_"),
    "megatron_lm_config": (MEGATRON_LM, ""),
    "mpirun_config": (["mpirun_hostfile"], ""),
}
"""Sections of the YAML: their keys, and what the launcher puts before a key that does not begin so."""

DISTRIBUTED_TYPES = """
    NO MULTI_CPU MULTI_GPU MULTI_NPU MULTI_MLU MULTI_SDAA MULTI_MUSA MULTI_XPU DEEPSPEED FSDP XLA MEGATRON_LM
    MULTI_HPU MULTI_NEURON
""".split()
MULTI_DEVICE = [kind for kind in DISTRIBUTED_TYPES if kind.startswith("MULTI_") and kind != "MULTI_CPU"]
"""DistributedDataParallel on one kind of device or another."""

MIXED_PRECISION = ["no", "fp8", "fp16", "bf16"]
FP8_BACKENDS = ["TE", "MSAMP", "AO"]
COMPUTE_ENVIRONMENTS = ["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]
SHARDING_STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
WRAP_POLICIES = ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"]
BACKWARD_PREFETCH = ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]
STATE_DICT_TYPES = ["FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"]
DYNAMO_BACKENDS = """
    NO EAGER AOT_EAGER INDUCTOR AOT_TS_NVFUSER NVPRIMS_NVFUSER CUDAGRAPHS OFI FX2TRT ONNXRT TENSORRT
    AOT_TORCHXLA_TRACE_ONCE TORCHXLA_TRACE_ONCE TVM HPU_BACKEND NEURON
""".split()
MULTINODE_LAUNCHERS = ["pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm", "impi"]
"""Accelerate's, and one more that DeepSpeed knows."""
CP_BACKENDS, CP_STRATEGIES, SP_BACKENDS = ["torch"], ["allgather", "alltoall"], ["deepspeed"]
SP_ATTENTION = ["flash_attention_2", "flash_attention_3", "sdpa"]
"""And kernels of the Hub whose name holds a ``/`` and ``flash-attn``."""

DEEPSPEED = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps managed_gradient_accumulation
    gradient_clipping zero_optimization bf16 bfloat16 fp16 torch_autocast optimizer scheduler data_types
    communication_data_type seq_parallel_communication_data_type prescale_gradients gradient_predivide_factor
    gradient_allreduce_op disable_allgather zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
    activation_checkpointing checkpoint datastates_ckpt aio compile tensor_parallel expert_parallel pipeline
    sequence_parallel_size use_data_before_expert_parallelism data_efficiency dataloader_drop_last
    hybrid_engine weight_quantization autotuning flops_profiler comms_logger tensorboard wandb csv_monitor
    comet steps_per_print wall_clock_breakdown memory_breakdown timers log_level dump_state disable_python_gc
    vocabulary_size msamp inference
""".split()
"""Top of the JSON. The last two are read by Accelerate and by transformers."""

DEEPSPEED_REMOVED = """
    nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity
    graph_harvesting curriculum_learning progressive_layer_drop
""".split()
"""Keys that DeepSpeed 0.19 refuses: it has dropped what they switched on."""

ZERO_REMOVED = ["mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"]
"""The same inside ``zero_optimization``."""

_ZERO = """
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

SECOND_NAMES = {
    "zero_optimization": {
        name: f"stage3_{name}"
        for name in (
            "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
            "max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save",
            "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
        )
    },
    "tensor_parallel": {"tensor_parallel": "tp", "replace_with_kernel_inject": "kernel_inject"},
}  # fmt: skip
"""Section -> a field's own name -> the name in the documentation. Both are taken, but not both at once."""

STRICT = {
    "zero_optimization": _ZERO,
    "zero_optimization.offload_param": """
        device nvme_path buffer_count buffer_size max_in_cpu pin_memory
    """.split(),
    "zero_optimization.offload_optimizer": """
        device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio super_offload
        cpuadam_cores_perc
    """.split(),
    "zero_optimization.zenflow": """
        topk_ratio select_strategy select_interval update_interval overlap_step offload auto_ratio
        full_warm_up_rounds pt_reserved_cores_perc steps_per_epoch
    """.split(),
    "zero_optimization.leaf_module": ["classes", "names", "name_suffixes"],
    "bf16": """
        enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states
    """.split(),
    "fp16": """
        enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
        min_loss_scale fp16_master_weights_and_grads
    """.split(),
    "compile": """
        deepcompile autoep_non_moe free_activation free_activation_threshold offload_activation
        offload_activation_pin_memory offload_opt_states double_buffer symmetric_memory debug_log
        offload_parameters sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather
        keep_int_input_tensors keep_all_input_tensors passes
    """.split(),
    "comms_logger": "enabled prof_all prof_ops verbose debug".split(),
    "tensorboard": "enabled output_path job_name".split(),
    "wandb": "enabled group team project".split(),
    "csv_monitor": "enabled output_path job_name".split(),
    "comet": """
        enabled samples_log_interval project workspace api_key experiment_name experiment_key online mode
    """.split(),
    "tensor_parallel": """
        dtype autotp_size tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend tp
        injection_policy_tuple partition_config preset_model keep_module_on_host kernel_inject
    """.split(),
    "hybrid_engine": """
        enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters
        tp_gather_partition_size enable_cuda_graph
    """.split(),
    "weight_quantization": """
        enabled num_bits q_type q_groups quantized_initialization post_init_quant
    """.split(),
    "timers.throughput": ["enabled", "synchronized"],
}
"""Sections of the JSON in which DeepSpeed refuses a key it does not know."""

ZERO_LEAST = {
    "reduce_bucket_size": 1, "allgather_bucket_size": 0, "sub_group_size": 0, "stage3_prefetch_bucket_size":
    0, "stage3_param_persistence_threshold": 0, "stage3_model_persistence_threshold": 0,
    "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "zero_hpz_partition_size": 0,
}  # fmt: skip
"""Counts in ``zero_optimization``, and the least that DeepSpeed takes."""

OFFLOAD_DEVICES = ["none", "cpu", "nvme"]
DEEPSPEED_OPTIMIZERS = "adagrad adam adamw lamb muadam muadamw musgd lion muon".split()
"""In any case of letters; any other name must be a class of torch.optim, letter for letter."""

TORCH_OPTIMIZERS = """
    ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam
""".split()
