"""torchtitan's job file (TOML): the tables of its ``JobConfig``, of 2025 and, by their old names, of 2024.

Names are those of github pytorch/torchtitan, torchtitan/config/job_config.py. How the program acts on them:

- FSDP2 shards over ``data_parallel_shard_degree`` and the context ranks together. Mixed precision is FSDP's;
with
  plain data parallelism it is autocast, and with tensor or pipeline parallelism alone there is none.
- ``fsdp_reshard_after_forward = "default"`` keeps weights gathered where there is a pipeline.
- Tensor parallelism comes with sequence parallelism, and unless disabled with loss parallelism.
- A pipeline counts embedding and head as a layer each when it is split by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from workshop.configs.formats.settings import Settings, flattened
from workshop.configs.job_file import ParsedJob
from workshop.configs.overrides import Overrides
from workshop.facts import catalogue
from workshop.facts.checks import check_choice
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.model import ModelSpec

OLD_NAMES = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.compile": "compile.enable",
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    **{
        f"{section}.{name}": f"parallelism.{name}"
        for section in ("training", "experimental")
        for name in (
            "data_parallel_shard_degree", "data_parallel_replicate_degree", "tensor_parallel_degree",
            "context_parallel_degree", "context_parallel_rotate_method", "pipeline_parallel_degree",
            "pipeline_parallel_split_points", "pipeline_parallel_schedule", "pipeline_parallel_microbatches",
            "pipeline_parallel_schedule_csv", "enable_async_tensor_parallel", "enable_compiled_autograd",
            "disable_loss_parallel",
        )
    },
}  # fmt: skip

MODELS = {
    ("llama2", "7B"): "llama-2-7b",
    ("llama2", "13B"): "llama-2-13b",
    ("llama2", "70B"): "llama-2-70b",
    ("llama3", "8B"): "llama-3-8b",
    ("llama3", "70B"): "llama-3-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
    **{
        ("qwen3", size): f"qwen3-{size.lower()}"
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
}
"""``model.name`` and ``model.flavor`` -> the catalogue's model of the same shape."""

SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "loopedbfs": "breadth-first",
    "zbvzerobubble": "zbv",
}
LOOPED = ("interleaved", "breadth-first", "zbv")
FP8_CONVERTERS = ("float8", "quantize.linear.float8", "quantize.dense.float8")
OPTIMIZERS = {"adamw": "adamw", "adam": "adam"}
STEP_ROOM = {"fused": 0.0, "foreach": 4.0, "for-loop": 0.0}

WITHOUT_EFFECT = [
    "job.*", "profiling.*", "metrics.*", "checkpoint.*", "comm.*", "memory_estimation.*", "validation.*",
    "debug.*", "lr_scheduler.*", "float8.*", "mx.*", "quantize.*", "compile.*", "tokenizer.*",
    "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "model.norm_type",
    "optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps", "optimizer.weight_decay",
    "training.dataset", "training.dataset_path", "training.max_norm", "training.steps", "training.gc_freq",
    "training.gc_debug", "training.seed", "training.deterministic", "training.warmup_steps",
    "training.mixed_precision_reduce", "training.debug_moe_force_load_balance",
    "parallelism.context_parallel_load_balancer",
    "parallelism.enable_compiled_autograd", "activation_checkpoint.early_stop",
    "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check",
    "activation_checkpoint.debug",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "fault_tolerance.*",
]  # fmt: skip
"""What changes neither memory nor the traffic and time of a step, or (float8, mx, quantize, compile) only
once it is switched on elsewhere, where it is read."""

IS_TORCHTITAN = ("training", "parallelism", "experimental", "activation_checkpoint", "lr_scheduler", "job")


def parse_torchtitan(table: Mapping[str, Any], overrides: Overrides) -> ParsedJob:
    """What the file says.

    Raises:
        ValueError: A value is of the wrong kind, or a choice that does not exist.
    """
    settings = Settings(_renamed(flattened(table)))
    model = _model(settings, overrides)
    micro_batch, accumulation, global_batch = _batch(settings)
    layout = _layout(settings, model)
    kernels = _kernels(settings, layout["tensor"])
    optimizer = _optimizer(settings)
    settings.refuse_where_set(
        {
            "fault_tolerance.enable": "replicas that come and go (torchft)",
            "training.enable_detect_anomaly": "torch's anomaly mode keeps more than the graph",
            "experimental.custom_import": "a module of one's own may change anything",
            "experimental.custom_args_module": "a module of one's own may change anything",
            "experimental.custom_model_path": "a module of one's own may change anything",
        }
    )
    replicate = settings.size("parallelism.data_parallel_replicate_degree", 1)
    shard = settings.size("parallelism.data_parallel_shard_degree", -1, also=(-1,))
    return ParsedJob(
        "torchtitan",
        shape={} if model is None else {f.name: getattr(model, f.name) for f in fields(model)},
        layout=layout,
        implementation=kernels,
        replicate=replicate,
        shard=max(0, shard),
        micro_batch=micro_batch,
        seq_len=settings.size("training.seq_len", 2048),
        global_batch=global_batch,
        accumulation=accumulation,
        optimizer=optimizer,
        notes=tuple(settings.notes),
        without_effect=settings.without_effect(WITHOUT_EFFECT),
        not_modelled=settings.refused(WITHOUT_EFFECT),
    )


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Names of today."""
    return {OLD_NAMES.get(name, name): value for name, value in values.items()}


def _model(settings: Settings, overrides: Overrides) -> ModelSpec | None:
    """The catalogue's model; the given one for a flavor that is not in it, None where none is given."""
    name, flavor = settings.word("model.name", "llama3"), settings.word("model.flavor", "debugmodel")
    known = MODELS.get((name, flavor))
    if known is None:
        settings.note(f"model {name} {flavor} is not in the catalogue: its shape must be given")
        return overrides.spec()
    return catalogue.model(known)


def _batch(settings: Settings) -> tuple[int, int, int]:
    """Micro-batch, micro-batches of a step, and the global batch where the file says it."""
    local = settings.size("training.local_batch_size", 8)
    total = max(0, settings.size("training.global_batch_size", -1, also=(-1,)))
    stages = settings.size("parallelism.pipeline_parallel_degree", 1)
    counted = settings.has("parallelism.pipeline_parallel_microbatches")  # until 2025
    passes = settings.size("parallelism.pipeline_parallel_microbatches", 0)
    size = settings.size("parallelism.pipeline_parallel_microbatch_size", 1)
    micro = local
    if stages > 1:
        micro = local // (passes or stages) if counted else size
    if micro < 1 or local % micro:
        raise ValueError(f"training.local_batch_size = {local} does not divide into micro-batches of {micro}")
    return micro, 0 if total else local // micro, total


ROTATES = {"allgather": "all_gather", "alltoall": "ring"}
"""How PyTorch's context parallelism brings keys and values to each rank, and `Layout`'s name for it."""


def _layout(settings: Settings, model: ModelSpec | None) -> dict[str, Any]:
    tensor = settings.size("parallelism.tensor_parallel_degree", 1)
    context = settings.size("parallelism.context_parallel_degree", 1)
    pipeline = settings.size("parallelism.pipeline_parallel_degree", 1)
    rotates = settings.word("parallelism.context_parallel_rotate_method", "allgather", ROTATES)
    shards = settings.size("parallelism.data_parallel_shard_degree", -1, also=(-1,))
    is_fsdp = shards != 1 or context > 1
    reshard = settings.word(
        "parallelism.fsdp_reshard_after_forward", "default", ("default", "always", "never")
    )
    resharded = reshard == "always" or (reshard == "default" and pipeline == 1)
    if settings.flag("parallelism.enable_async_tensor_parallel") and tensor > 1:
        settings.note(
            "enable_async_tensor_parallel: how much of the traffic it hides is not in the predicted time"
        )
    offload = settings.flag("training.enable_cpu_offload")
    cuts: dict[str, Any] = {
        "zero": (3 if resharded else 2) if is_fsdp else 0,
        "tensor": tensor,
        "sequence_parallel": tensor > 1,
        "context": context,
        "context_method": ROTATES[rotates] if context > 1 else "ring",
        "pipeline": pipeline,
        "expert": settings.size("parallelism.expert_parallel_degree", 1),
        "precision": _precision(settings, is_fsdp, tensor > 1 or pipeline > 1),
        "offload": "params" if offload else "none",
    }
    if cuts["expert"] > 1:
        cuts["expert_tensor"] = settings.size("parallelism.expert_tensor_parallel_degree", 1)
    else:
        settings.value("parallelism.expert_tensor_parallel_degree")
    cuts |= _pipeline(settings, model, pipeline)
    return cuts | _recompute(settings, model, pipeline)


def _precision(settings: Settings, is_fsdp: bool, is_cut: bool) -> str:
    width = settings.word("training.mixed_precision_param", "bfloat16", ("bfloat16", "float32"))
    weights = settings.word("training.dtype", "float32", ("bfloat16", "float32"))
    fp8 = [name for name in settings.words("model.converters") if name in FP8_CONVERTERS]
    other = [name for name in settings.words("model.converters") if name not in FP8_CONVERTERS]
    if other:
        settings.refuse("model.converters", f"{', '.join(other)} is not modelled (float8 is)")
    fp8 = fp8 or (["float8"] if settings.flag("float8.enable_float8_linear") else [])
    if weights == "bfloat16":
        return "bf16"
    if fp8 and not is_fsdp:
        settings.refuse("model.converters", "FP8 is modelled with FSDP")
    if fp8:
        return "fsdp-fp8"
    if width == "float32":
        return "fp32"
    if is_fsdp:
        return "fsdp-bf16"
    if is_cut:
        settings.note(
            "mixed precision is FSDP's, or autocast's without any cut: here everything is computed in fp32"
        )
        return "fp32"
    return "amp-bf16"


def _pipeline(settings: Settings, model: ModelSpec | None, stages: int) -> dict[str, Any]:
    """Schedule and virtual stages; nothing where there is no pipeline."""
    named = settings.word("parallelism.pipeline_parallel_schedule", "1F1B")
    each = settings.size("parallelism.pipeline_parallel_layers_per_stage", 0)
    first = settings.number("parallelism.pipeline_parallel_first_stage_less_layers", 1)
    last = settings.number("parallelism.pipeline_parallel_last_stage_less_layers", 1)
    points = (
        "pipeline_parallel_split_points", "pipeline_parallel_schedule_csv", "module_fqns_per_model_part",
        "pipeline_parallel_expert_parallel_overlap",
    )  # fmt: skip
    for point in points:
        if settings.value(f"parallelism.{point}") not in (None, "", [], False) and stages > 1:
            settings.refuse(f"parallelism.{point}", "stages cut by hand are not modelled")
    if stages == 1:
        return {}
    if named.lower() not in SCHEDULES:
        settings.refuse("parallelism.pipeline_parallel_schedule", f"known: {', '.join(SCHEDULES)}")
        return {}
    schedule = SCHEDULES[named.lower()]
    if (first, last) not in ((0, 0), (1, 1)):
        settings.refuse(
            "parallelism.pipeline_parallel_first_stage_less_layers", "only 1 and 1, or 0 and 0, are modelled"
        )
    virtual = 2 if schedule in LOOPED else 1
    if each and model is not None:
        virtual = -(-(model.num_layers + first + last) // each) // stages
    return {
        "schedule": schedule,
        "virtual_stages": max(1, virtual),
        "embedding_in_stages": (first, last) == (1, 1),
    }


def _recompute(settings: Settings, model: ModelSpec | None, stages: int) -> dict[str, Any]:
    """Whole layers, every n-th layer, or by operation."""
    mode = settings.word("activation_checkpoint.mode", "selective")
    option = settings.word("activation_checkpoint.selective_ac_option", "2")
    check_choice("activation_checkpoint.mode", mode, ("selective", "full", "none", "memory_budget"))
    settings.value("activation_checkpoint.memory_budget")
    if mode == "memory_budget":
        settings.refuse(
            "activation_checkpoint.mode", "what the compiler keeps within a budget is not modelled"
        )
    if mode != "selective":
        return {"recompute": "full" if mode == "full" else "none"}
    if option == "op":
        return {"recompute": "selective", "recompute_modules": ("ops",)}
    if not option.isdecimal() or int(option) < 1:
        raise ValueError(
            f"activation_checkpoint.selective_ac_option = {option!r} is neither 'op' nor a number"
        )
    layers = 0 if model is None else model.num_layers // stages // int(option)
    if int(option) == 1:
        return {"recompute": "full"}
    if model is not None and not layers:
        return {"recompute": "none"}
    return {"recompute": "full", "recompute_layers": layers}


def _kernels(settings: Settings, tensor: int) -> Implementation:
    kind = settings.word("optimizer.implementation", "fused", STEP_ROOM)
    if settings.has("optimizer.fused"):  # until 2025
        kind = "fused" if settings.flag("optimizer.fused") else "for-loop"
    is_parallel_loss = not settings.flag("parallelism.disable_loss_parallel") and tensor > 1
    return implementation(
        "torchtitan",
        compile=settings.flag("compile.enable"),
        loss="loss-parallel" if is_parallel_loss else "eager",
        optimizer_in_backward=settings.flag("optimizer.early_step_in_backward"),
        step_room=STEP_ROOM[kind],
    )


def _optimizer(settings: Settings) -> str:
    name = settings.word("optimizer.name", "AdamW")
    if name.lower() not in OPTIMIZERS:
        settings.refuse("optimizer.name", f"known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS.get(name.lower(), "adamw")


def is_torchtitan(table: Mapping[str, Any]) -> bool:
    """Whether the tables are those of a torchtitan job."""
    own = sum(isinstance(table.get(name), Mapping) for name in IS_TORCHTITAN)
    return own >= 2 and isinstance(table.get("model"), Mapping)
