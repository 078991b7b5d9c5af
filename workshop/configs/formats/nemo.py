"""NeMo's YAML (NeMo 1: ``trainer`` and ``model``), as its examples and its launcher write it.

Names are those of github NVIDIA/NeMo, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml. The
layers are Megatron-Core's, so bytes and kernels are read as Megatron-LM's
(`workshop.configs.formats.megatron`):

- ``megatron_amp_O2`` keeps weights in 16 bits beside an fp32 copy; without it mixed precision is torch's
autocast
  over fp32 weights.
- ``distributed_fused_adam`` shards the optimizer over all data-parallel ranks, ``fused_adam`` does not.
- Values may point at others (``${.hidden_size}``, ``${model.encoder_seq_length}``) or multiply them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workshop.configs.formats.settings import Settings, flattened
from workshop.configs.job_file import ParsedJob
from workshop.configs.overrides import Overrides
from workshop.facts.device import split_count
from workshop.facts.implementation import Implementation, implementation

GATED = ("swiglu", "geglu", "reglu", "fast-swiglu", "fast-geglu", "fast-reglu", "quick-geglu")
UNGATED = ("gelu", "relu", "squared-relu", "approx-gelu")
VOCABULARIES = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "BertWordPieceCase": 28996,
    "gpt2": 50257,
    "meta-llama/Meta-Llama-3-8B": 128256,
    "meta-llama/Meta-Llama-3-70B": 128256,
    "meta-llama/Meta-Llama-3.1-8B": 128256,
    "meta-llama/Meta-Llama-3.1-70B": 128256,
    "meta-llama/Meta-Llama-3.1-405B": 128256,
}
"""``model.tokenizer.type`` -> words, where the name decides."""

OPTIMIZERS = {
    "distributed_fused_adam": ("adamw", 1),
    "mcore_distributed_optim": ("adamw", 1),
    "fused_adam": ("adamw", 0),
    "adamw": ("adamw", 0),
    "adam": ("adam", 0),
    "sgd": ("sgd", 0),
}
"""Name -> the optimizer, and the ZeRO stage it works at."""

NOT_MODELLED = {
    "model.peft.peft_scheme": "adapters: give them as an option (--lora)",
    "model.headscale": "extra scales of the heads",
    "model.mamba_ssm_ngroups": "state-space layers",
    "model.hybrid_override_pattern": "state-space layers",
    "model.window_size": "attention that sees only a window",
    "model.num_micro_batches_with_partial_activation_checkpoints": "recomputation that changes within a step",
    "model.activations_checkpoint_layers_per_pipeline": "recomputation that differs between stages",
    "model.cpu_offloading": "activations moved to the host by Transformer Engine",
    "model.use_emha": "another attention",
    "model.megatron_legacy": "layers of before Megatron-Core",
    "model.retro.enabled": "RETRO",
    "model.enable_cuda_graph": "buffers of CUDA graphs",
    "trainer.strategy": "a strategy of one's own",
}

WITHOUT_EFFECT = [
    "name", "run.*", "defaults", "hydra.*", "restore_from_path", "exp_manager.*", "trainer.accelerator",
    "trainer.logger", "trainer.enable_checkpointing", "trainer.use_distributed_sampler",
    "trainer.replace_sampler_ddp", "trainer.max_*", "trainer.log_every_n_steps",
    "trainer.val_check_interval", "trainer.limit_*", "trainer.gradient_clip_val", "trainer.benchmark",
    "trainer.enable_model_summary", "trainer.enable_progress_bar", "trainer.num_sanity_val_steps",
    "model.data.*", "model.tokenizer.*", "model.nsys_profile.*", "model.optim.*", "model.mcore_gpt",
    "model.name", "model.init_method_std", "model.use_scaled_init_method", "model.attention_dropout",
    "model.ffn_dropout", "model.apply_query_key_layer_scaling", "model.layernorm_epsilon",
    "model.do_layer_norm_weight_decay", "model.pre_process", "model.post_process",
    "model.persist_layer_norm", "model.openai_gelu", "model.normalize_attention_scores", "model.rotary_*",
    "model.apply_rope_fusion", "model.attention_type", "model.overlap_p2p_comm", "model.batch_p2p_comm",
    "model.native_amp_*", "model.hysteresis", "model.fp32_residual_connection",
    "model.fp16_lm_cross_entropy", "model.grad_*", "model.gradient_*", "model.*_fusion",
    "model.get_attention_mask_from_fusion", "model.seed", "model.resume_from_checkpoint",
    "model.use_cpu_initialization", "model.onnx_safe", "model.*_log_level", "model.sync_batch_comm",
    "model.fp8_margin", "model.fp8_interval", "model.fp8_amax_*", "model.reduce_amax",
    "model.ub_tp_comm_overlap*", "model.tp_comm_*", "model.gc_interval", "model.scale_positional_embedding",
    "model.scale_*", "model.nccl_communicator_config_path", "model.dist_ckpt_*", "model.fsdp_*_dtype",
    "model.moe_router_*", "model.moe_aux_loss_coeff", "model.moe_z_loss_coeff", "model.moe_grouped_gemm",
    "model.moe_token_dispatcher_type", "model.use_te_rng_tracker", "model.seq_len_interpolation_factor",
    "model.fp8_wgrad", "model.sharp", "model.enable_megatron_timers", "model.megatron_timer_kwargs",
    "model.dist_*", "model.log_*", "model.rampup_batch_size", "model.defer_embedding_wgrad_compute",
]  # fmt: skip
"""What changes neither what a rank keeps nor what the prediction knows of a step's time. ``model.optim`` and
``model.data`` are read where they matter."""


def parse_nemo(table: Mapping[str, Any], overrides: Overrides) -> ParsedJob:
    """What the file says.

    Raises:
        ValueError: A value is of the wrong kind, points at nothing, or is a choice that does not exist.
    """
    settings = Settings(flattened(table.get("training", table) if "model" not in table else table))
    _resolve(settings)
    settings.refuse_where_set(NOT_MODELLED)
    layers = settings.size("model.num_layers", 0)
    shape = _shape(settings, layers)
    optimizer, zero = _optimizer(settings)
    fsdp = _fsdp(settings)
    zero = fsdp if settings.flag("model.fsdp") else zero
    if settings.number("trainer.accumulate_grad_batches", 1) != 1:
        settings.refuse(
            "trainer.accumulate_grad_batches", "NeMo counts micro-batches by itself, and wants 1 here"
        )
    if settings.value("model.rampup_batch_size"):
        settings.note("model.rampup_batch_size: the prediction is of the steps after it")
    precision = _precision(settings)
    return ParsedJob(
        "nemo",
        shape=shape,
        layout={"zero": zero, "precision": precision, **_layout(settings, bool(shape.get("num_experts")))},
        implementation=_kernels(settings, overrides),
        ranks=_ranks(settings),
        micro_batch=settings.size("model.micro_batch_size", 0),
        seq_len=settings.size("model.encoder_seq_length", 0) or settings.size("model.data.seq_length", 0),
        global_batch=settings.size("model.global_batch_size", 0),
        optimizer=optimizer,
        notes=tuple(settings.notes),
        without_effect=settings.without_effect(WITHOUT_EFFECT),
        not_modelled=settings.refused(WITHOUT_EFFECT),
    )


def _ranks(settings: Settings) -> int:
    """Ranks of all nodes; 0 where a node's are not said: -1 and "auto" are all the GPUs that it has."""
    nodes = settings.size("trainer.num_nodes", 1)
    if settings.value("trainer.devices", "auto") in ("auto", -1, "-1"):
        return 0
    return settings.size("trainer.devices") * nodes


# ------------------------------------------------------------------ values that point at others

_POINTER = re.compile(r"\$\{([^${}]*)\}")


def _resolve(settings: Settings) -> None:
    """Put values in the place of ``${...}``; what points outside the file stays as it is written."""
    for name in settings.values:
        settings.values[name] = _resolved(settings.values, name, settings.values[name], 0)


def _resolved(values: Mapping[str, Any], name: str, value: Any, depth: int) -> Any:
    if not isinstance(value, str) or depth > 20:
        return value
    pointer = _POINTER.search(value)
    if pointer is None:
        return value
    inside = _pointed(values, name, pointer.group(1))
    if inside is None:
        return value
    if pointer.group() == value:
        return _resolved(values, name, inside, depth + 1)
    return _resolved(values, name, value.replace(pointer.group(), str(inside), 1), depth + 1)


def _pointed(values: Mapping[str, Any], name: str, inside: str) -> Any:
    """What ``model.hidden_size``, ``.hidden_size`` or ``multiply:2,3`` stands for; None where it is not
    here."""
    operation, _, arguments = inside.partition(":")
    if operation in ("multiply", "divide") and arguments:
        numbers = [part.strip() for part in arguments.split(",")]
        if not all(number.lstrip("-").isdecimal() for number in numbers):
            return None
        first, *others = map(int, numbers)
        for other in others:
            first = first * other if operation == "multiply" else first // other
        return first
    dots = len(inside) - len(inside.lstrip("."))
    path = inside.lstrip(".").removeprefix("training.")
    if dots:
        parents = name.split(".")[:-dots]
        path = ".".join([*parents, path])
    return values.get(path)


# ------------------------------------------------------------------ the model


def _shape(settings: Settings, layers: int) -> dict[str, Any]:
    hidden, heads = settings.size("model.hidden_size", 0), settings.size("model.num_attention_heads", 0)
    activation = settings.word("model.activation", "gelu", (*GATED, *UNGATED))
    norm = settings.word(
        "model.normalization", "layernorm", ("layernorm", "layernorm1p", "rmsnorm", "low_precision_layernorm")
    )
    bias = settings.flag("model.bias", True)
    positions = settings.word(
        "model.position_embedding_type",
        "learned_absolute",
        ("learned_absolute", "rope", "alibi", "kerple", "none"),
    )
    block = settings.word("model.transformer_block_type", "pre_ln")
    if block not in ("pre_ln", "normformer", "post_ln") or block == "normformer":
        settings.refuse("model.transformer_block_type", "pre_ln and post_ln are modelled")
    rows = settings.size("model.max_position_embeddings", 0)
    qk_norm = settings.flag("model.qk_layernorm")
    return {
        "name": f"nemo-{layers}x{hidden}",
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "ffn_hidden_size": settings.size("model.ffn_hidden_size", 4 * hidden),
        "num_kv_heads": settings.size("model.num_query_groups", 0) or heads,
        "head_dim": settings.size("model.kv_channels", 0) or (hidden // heads if heads else 0),
        "positions": {"rope": "rotary", "learned_absolute": "learned", "kerple": "alibi"}.get(
            positions, positions
        ),
        "max_positions": rows if positions == "learned_absolute" else 0,
        "norm": "rmsnorm" if norm == "rmsnorm" else "layernorm",
        "gated_mlp": activation in GATED,
        "qkv_bias": settings.flag("model.qkv_bias") or bias,
        "attention_out_bias": bias,
        "mlp_bias": bias,
        "tied_embeddings": settings.flag("model.share_embeddings_and_output_weights", True),
        "qk_norm": "head" if qk_norm else "none",
        "dropout": True,
        **_experts(settings),
        "vocab_size": _vocabulary(settings),
    }


def _experts(settings: Settings) -> dict[str, Any]:
    number = settings.size("model.num_moe_experts", 0, also=(0,))
    visited = settings.size("model.moe_router_topk", 2)
    width = settings.size("model.moe_ffn_hidden_size", 0)
    shared = settings.number("model.moe_shared_expert_intermediate_size", 0)
    if not number:
        return {}
    return {
        "num_experts": number,
        "experts_per_token": visited,
        "moe_ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
    }


def _vocabulary(settings: Settings) -> int:
    """Words; 0 where only the tokenizer's file knows."""
    given = settings.size("model.override_vocab_size", 0)
    kind = settings.word("model.tokenizer.type", "")
    if given:
        return given
    if kind in VOCABULARIES:
        return VOCABULARIES[kind]
    library = settings.word("model.tokenizer.library", "")
    settings.note(
        f"how many words there are stands in the tokenizer ({library or 'not said'} {kind}), not in the "
        "file: give the "
        "model, or model.override_vocab_size"
    )
    return 0


# ------------------------------------------------------------------ layout and kernels


def _layout(settings: Settings, routed: bool) -> dict[str, Any]:
    tensor = settings.size("model.tensor_model_parallel_size", 1)
    expert = settings.size("model.expert_model_parallel_size", 1)
    inside = settings.size("model.expert_tensor_parallel_size", 0)
    sequence_parallel = settings.flag("model.sequence_parallel")
    return {
        "tensor": tensor,
        "sequence_parallel": sequence_parallel and tensor > 1,
        "pipeline": settings.size("model.pipeline_model_parallel_size", 1),
        "virtual_stages": settings.size("model.virtual_pipeline_model_parallel_size", 1),
        "context": settings.size("model.context_parallel_size", 1),
        "expert": expert if routed else 1,
        "expert_tensor": inside if routed else 0,
        **_recompute(settings),
    }


def _recompute(settings: Settings) -> dict[str, Any]:
    named = settings.word("model.activations_checkpoint_granularity", "none", ("none", "full", "selective"))
    method = settings.word("model.activations_checkpoint_method", "uniform", ("uniform", "block"))
    number = settings.number("model.activations_checkpoint_num_layers", 1)
    if named != "full":
        return {"recompute": named}
    if method == "block" and not number:
        return {"recompute": "none"}
    return {
        "recompute": "full",
        ("recompute_layers" if method == "block" else "recompute_every"): max(1, number),
    }


def _precision(settings: Settings) -> str:
    named = settings.word("trainer.precision", "32")
    words = {
        "bf16": "bf16",
        "bf16-mixed": "bf16",
        "16": "fp16",
        "16-mixed": "fp16",
        "32": "fp32",
        "32-true": "fp32",
    }
    if named not in words:
        settings.refuse("trainer.precision", f"known: {', '.join(words)}")
        return "fp32"
    width, whole = words[named], settings.flag("model.megatron_amp_O2")
    engine, in_8_bits = settings.flag("model.transformer_engine", True), settings.flag("model.fp8")
    fp8 = engine and in_8_bits
    gathered = settings.flag("model.fp8_params")
    for name in ("model.fp8_e4m3", "model.fp8_hybrid"):
        settings.value(name)
    if fp8 and width == "bf16" and whole:
        return "megatron-fp8-params" if gathered else "megatron-fp8"
    if fp8:
        settings.refuse("model.fp8", "FP8 is modelled with bf16 and megatron_amp_O2")
    if width == "fp32":
        return "fp32"
    if not whole:
        return f"amp-{width}"
    if settings.word("model.optim.grad_sync_dtype", "fp32") in ("bf16", "bfloat16", "fp16"):
        settings.note(f"gradients are kept in 16 bits: the bytes are those of the recipe deepspeed-{width}")
        return f"deepspeed-{width}"
    return f"megatron-{width}"


def _optimizer(settings: Settings) -> tuple[str, int]:
    name = settings.word("model.optim.name", "fused_adam")
    if name not in OPTIMIZERS:
        settings.refuse("model.optim.name", f"known: {', '.join(OPTIMIZERS)}")
        return "adamw", 0
    if name == "distributed_fused_adam":
        settings.note("distributed_fused_adam is read as Megatron's distributed optimizer (ZeRO stage 1)")
    return OPTIMIZERS[name]


def _fsdp(settings: Settings) -> int:
    """PyTorch's FSDP around Megatron's layers."""
    strategy = settings.word("model.fsdp_sharding_strategy", "full", ("full", "hybrid", "grad"))
    if strategy == "hybrid" and settings.flag("model.fsdp"):
        settings.refuse("model.fsdp_sharding_strategy", "how many ranks share a model is not in the file")
    for name in (
        "model.fsdp_grad_reduce_dtype",
        "model.fsdp_sharded_checkpoint",
        "model.fsdp_use_orig_params",
    ):
        settings.value(name)
    return 2 if strategy == "grad" else 3


def _kernels(settings: Settings, overrides: Overrides) -> Implementation:
    engine, flash = (
        settings.flag("model.transformer_engine", True),
        settings.flag("model.use_flash_attention"),
    )
    flash = flash or engine
    device = split_count(overrides.device)[1] if overrides.device else ""
    attention = ("flash" if device.startswith("H") else "flash-copy") if flash else "unfused"
    fused_loss = settings.flag("model.cross_entropy_loss_fusion")
    return implementation(
        "megatron",
        attention=attention,
        dropout=settings.real("model.hidden_dropout", 0.1) > 0,
        vocab_multiple=settings.number("model.make_vocab_size_divisible_by", 128),
        loss="vocab-parallel-fused" if fused_loss else "vocab-parallel",
        held_logit_grads=settings.number("model.wgrad_deferral_limit", 0),
        fixed_workspace=settings.flag("model.deterministic_mode"),
    )


def is_nemo(table: Mapping[str, Any]) -> bool:
    """Whether this is a file of NeMo 1: a model with Megatron's cuts, perhaps below ``training``."""
    inside = table.get("training", table) if "model" not in table else table
    model = inside.get("model") if isinstance(inside, Mapping) else None
    return (
        isinstance(model, Mapping)
        and "trainer" in inside
        and ("tensor_model_parallel_size" in model or "micro_batch_size" in model)
    )
