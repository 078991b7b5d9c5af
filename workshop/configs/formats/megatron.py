"""A command line of Megatron-LM: in a shell script, or its arguments alone in a text.

Defaults are those of github NVIDIA/Megatron-LM, megatron/training/arguments.py (for the model:
`workshop.configs.formats.megatron_model`). Which attention kernel runs depends on the device: on Hopper
Transformer Engine picks cuDNN's, elsewhere FlashAttention-2, whose output is copied once more.

An argument is modelled, or listed as without effect (`megatron_names`), or refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from workshop.configs.formats.megatron_model import shape_of
from workshop.configs.formats.megatron_names import OWN_NAMES, WITHOUT_EFFECT
from workshop.configs.formats.settings import Settings
from workshop.configs.formats.shell import commands
from workshop.configs.job_file import ParsedJob
from workshop.configs.overrides import Overrides
from workshop.facts.device import split_count
from workshop.facts.implementation import Implementation, implementation

SCRIPTS = {"gpt": "pretrain_gpt", "bert": "pretrain_bert", "t5": "pretrain_t5"}

ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd-momentum", "muon": "muon", "dist_muon": "muon"}
CUDA_GRAPHS = (
    "--cuda-graph-impl",
    "--cuda-graph-scope",
    "--enable-cuda-graph",
    "--external-cuda-graph",
    "--cuda-graph-warmup-steps",
)
LAUNCHERS = ("--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--standalone")

NOT_MODELLED = {
    "--pipeline-model-parallel-layout": "stages cut by hand",
    "--use-torch-fsdp2": "torch's FSDP2 around Megatron's layers",
    "--fp4-format": "4-bit maps",
    "--first-last-layers-bf16": "layers of two widths",
    "--heterogeneous-layers-config-path": "layers of several shapes",
    "--heterogeneous-layers-config-encoded-json": "layers of several shapes",
    "--hybrid-override-pattern": "state-space layers",
    "--hybrid-layer-pattern": "state-space layers",
    "--hybrid-attention-ratio": "state-space layers",
    "--is-hybrid-model": "state-space layers",
    "--perform-rl-step": "reinforcement learning: the inference engine's cache is not in the file",
    "--export-kd-cfg": "the teacher of a distillation is not in the file",
    "--window-size": "attention that sees only a window",
    "--experimental-attention-variant": "another attention",
    "--cpu-offloading-num-layers": "activations moved to the host by Transformer Engine",
    "--fine-grained-activation-offloading": "activations moved to the host",
    "--encoder-pipeline-model-parallel-size": "an encoder with a layout of its own",
    "--encoder-tensor-model-parallel-size": "an encoder with a layout of its own",
    "--num-moe-experts-per-layer": "layers of several shapes",
    "--yaml-cfg": "a file of Megatron's own YAML",
    "--retro-project-dir": "RETRO",
    "--use-megatron-fsdp-ep": "FSDP with expert layers",
}
"""Arguments that change what is kept or computed."""

PRECISION_AWARE = {
    "--main-grads-dtype": "fp32",
    "--main-params-dtype": "fp32",
    "--exp-avg-dtype": "fp32",
    "--exp-avg-sq-dtype": "fp32",
    "--megatron-fsdp-main-params-dtype": "fp32",
    "--megatron-fsdp-main-grads-dtype": "auto",
}


def megatron_values(text: str) -> dict[str, Any]:
    """Arguments by name, dashes included; True for one without a value, a tuple for several.

    Raises:
        ValueError: There is no training command among the lines, or the script does what cannot be followed.
    """
    listed = [[part for word in command for part in _unpacked(word)] for command in commands(text)]
    chosen = [words for words in listed if sum(word.startswith("--") for word in words) > 3]
    if chosen and not any(word.endswith(".py") for words in chosen for word in words):
        words = [word for command in listed if command[0].startswith("-") for word in command] or chosen[-1]
    elif chosen:
        words = max(chosen, key=lambda command: sum(word.startswith("--") for word in command))
    else:
        raise ValueError("there is no command with arguments such as --num-layers 32 in it")
    values: dict[str, Any] = {}
    scripts = [word for word in words if word.endswith(".py")]
    if scripts:
        values["script"] = scripts[-1]
    name = ""
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            name, _, value = word.partition("=")
            if name.replace("_", "-") in LAUNCHERS:  # torchrun takes both
                name = name.replace("_", "-")
            values[name] = value or True
        elif name and word not in scripts:
            before = values[name]
            values[name] = (
                word if before is True else (*(before if isinstance(before, tuple) else (before,)), word)
            )
        else:
            name = ""
    return values


def _unpacked(word: str) -> list[str]:
    """A whole command in quotes, as srun and ssh take one, or one word."""
    if " --" in f" {word}" and any(mark in word for mark in " \n\t"):
        return shlex.split(word)
    return [word]


def parse_megatron(values: Mapping[str, Any], overrides: Overrides) -> ParsedJob:
    """What the arguments say.

    Args:
        values: of `megatron_values`.
        overrides: what is known beside them; the device decides which attention kernel runs.

    Raises:
        ValueError: A value is of the wrong kind, or a choice that does not exist.
    """
    settings = Settings(values)
    family = _family(settings)
    settings.refuse_where_set(NOT_MODELLED)
    for name, usual in PRECISION_AWARE.items():
        if settings.word(name, usual) not in (usual, "fp32", "auto"):
            settings.refuse(name, f"moments, gradients and weights are modelled in {usual}")
    layers = settings.size("--num-layers", settings.size("--decoder-num-layers", 0))
    shape = shape_of(settings, family, layers)
    layout = _layout(settings, layers, bool(shape.get("num_experts")))
    sequence = settings.size("--seq-length", settings.size("--encoder-seq-length", 0))
    zero, shard, replicate = _sharding(settings)
    target = settings.size("--decoder-seq-length", 0)
    ranks = _ranks(settings)
    graphs = [name for name in CUDA_GRAPHS if settings.value(name) not in (None, "none", "0")]
    if graphs:
        settings.note(f"{graphs[0]}: the buffers of CUDA graphs are not in the predicted memory")
    if settings.has("--rampup-batch-size"):
        settings.note("--rampup-batch-size: the prediction is of the steps after it")
    return ParsedJob(
        "megatron",
        shape=shape,
        layout={"zero": zero, **layout},
        implementation=_kernels(settings, overrides),
        replicate=replicate,
        shard=shard,
        ranks=ranks,
        micro_batch=settings.size("--micro-batch-size", 0),
        seq_len=sequence,
        global_batch=settings.size("--global-batch-size", 0),
        target_len=target if family == "t5" else 0,
        optimizer=_optimizer(settings),
        notes=tuple(settings.notes),
        without_effect=settings.without_effect(WITHOUT_EFFECT),
        not_modelled=settings.refused(WITHOUT_EFFECT),
    )


def _family(settings: Settings) -> str:
    """Which model, by the script's name; arguments alone are a GPT's."""
    script = settings.word("script", "pretrain_gpt.py").rpartition("/")[2].removesuffix(".py")
    for family, name in SCRIPTS.items():
        if script == name:
            return family
    if script not in ("train", "pretrain"):
        settings.note(f"{script}.py: read as a GPT's arguments")
    return "gpt"


def _ranks(settings: Settings) -> int:
    each, nodes = settings.value("--nproc-per-node"), settings.value("--nnodes", "1")
    for name in LAUNCHERS:
        settings.value(name)
    known = all(isinstance(value, str) and value.isdecimal() for value in (each, nodes))
    return int(each) * int(nodes) if known else 0


def _layout(settings: Settings, layers: int, routed: bool) -> dict[str, Any]:
    tensor = settings.size("--tensor-model-parallel-size", 1)
    pipeline = settings.size("--pipeline-model-parallel-size", 1)
    expert, inside = (
        settings.size("--expert-model-parallel-size", 1),
        settings.size("--expert-tensor-parallel-size"),
    )
    ends = [settings.flag(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    if ends[0] != ends[1]:
        settings.refuse(
            f"--account-for-{'embedding' if ends[0] else 'loss'}-in-pipeline-split",
            "only both ends together are modelled",
        )
    if expert > 1 and not routed:
        raise ValueError(
            f"--expert-model-parallel-size {expert} without --num-experts: Megatron-LM stops, as there "
            "are no experts to divide; give --num-experts, or leave it out"
        )
    sequence_parallel = settings.flag("--sequence-parallel")
    return {
        "tensor": tensor,
        "sequence_parallel": sequence_parallel and tensor > 1,
        "pipeline": pipeline,
        "virtual_stages": _virtual(settings, layers, pipeline),
        "context": settings.size("--context-parallel-size", 1),
        "expert": expert if routed else 1,
        "expert_tensor": inside if routed else 0,
        "precision": _precision(settings),
        "offload": _offload(settings),
        "first_stage_layers": settings.size("--decoder-first-pipeline-num-layers", 0),
        "last_stage_layers": settings.size("--decoder-last-pipeline-num-layers", 0),
        "embedding_in_stages": all(ends) and pipeline > 1,
        **_recompute(settings),
    }


def _virtual(settings: Settings, layers: int, pipeline: int) -> int:
    each = settings.size("--num-layers-per-virtual-pipeline-stage", 0)
    stages = settings.size("--num-virtual-stages-per-pipeline-rank", 1)
    if not each:
        return stages
    if layers % (pipeline * each):
        raise ValueError(
            f"--num-layers-per-virtual-pipeline-stage {each}: {layers} layers do not divide by it and "
            f"{pipeline} stages"
        )
    return layers // pipeline // each


def _recompute(settings: Settings) -> dict[str, Any]:
    named = settings.word("--recompute-granularity", "none", ("none", "full", "selective"))
    if settings.flag("--recompute-activations"):
        named = "selective"
    method = settings.word("--recompute-method", "uniform", ("uniform", "block"))
    number = settings.size("--recompute-num-layers", 1)
    modules = settings.words("--recompute-modules")
    if settings.flag("--distribute-saved-activations"):
        settings.refuse("--distribute-saved-activations", "inputs of layers shared over tensor ranks")
    if named == "full":
        return {"recompute": "full", ("recompute_layers" if method == "block" else "recompute_every"): number}
    return {"recompute": named, "recompute_modules": modules if named == "selective" else ()}


def _precision(settings: Settings) -> str:
    fp8 = settings.word("--fp8-format", "", ("", "hybrid", "e4m3"))
    gathered = any([settings.flag("--fp8-param-gather"), settings.flag("--fp8-param")])
    brain, half = settings.flag("--bf16"), settings.flag("--fp16")
    if brain and half:
        raise ValueError("--bf16 and --fp16 are both there: Megatron-LM stops; keep one")
    in_16_bits = settings.flag("--grad-reduce-in-bf16")
    in_fp32 = settings.flag("--accumulate-allreduce-grads-in-fp32")
    if fp8:
        if in_16_bits:
            settings.note("--grad-reduce-in-bf16 with FP8: gradients are predicted in fp32")
        return "megatron-fp8-params" if gathered else "megatron-fp8"
    if not brain and not half:
        return "fp32"
    width = "bf16" if brain else "fp16"
    if (brain and in_16_bits) or (half and not in_fp32):
        settings.note(f"gradients are kept in 16 bits: the bytes are those of the recipe deepspeed-{width}")
        return f"deepspeed-{width}"
    return f"megatron-{width}"


def _offload(settings: Settings) -> str:
    share = settings.real("--optimizer-offload-fraction", 1.0)
    if not settings.flag("--optimizer-cpu-offload"):
        return "none"
    if share != 1.0:
        settings.refuse("--optimizer-offload-fraction", "only the whole optimizer is modelled")
    return "optimizer"


def _sharding(settings: Settings) -> tuple[int, int, int]:
    """ZeRO stage, shards and replicas; 0 for the ranks that are left."""
    strategy = settings.word("--data-parallel-sharding-strategy", "no_shard", ZERO_STAGES)
    fsdp = any([settings.flag("--use-megatron-fsdp"), settings.flag("--use-custom-fsdp")])
    distributed = settings.flag("--use-distributed-optimizer")
    zero = ZERO_STAGES[strategy] if fsdp or strategy != "no_shard" else int(distributed)
    replicas = settings.size("--num-distributed-optimizer-instances", 1)
    return zero, 0, replicas if zero else 0


def _optimizer(settings: Settings) -> str:
    name = settings.word("--optimizer", "adam")
    if name not in OPTIMIZERS:
        settings.refuse("--optimizer", f"known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS.get(name, "adamw")


def _kernels(settings: Settings, overrides: Overrides) -> Implementation:
    local = (
        settings.word("--transformer-impl", "transformer_engine") == "local"
        or settings.value("--spec") == "local"
    )
    backend = settings.word("--attention-backend", "auto")
    flash = settings.flag("--use-flash-attn")
    device = split_count(overrides.device)[1] if overrides.device else ""
    if (local and not flash) or backend in ("unfused", "local"):
        attention = "unfused"
    else:
        attention = "flash" if device.startswith("H") or backend == "fused" else "flash-copy"
    deferred = settings.number("--wgrad-deferral-limit", 0)
    settings.value("--defer-embedding-wgrad-compute")
    fused_loss = settings.flag("--cross-entropy-loss-fusion")
    return implementation(
        "megatron-local" if local else "megatron",
        attention=attention,
        dropout=settings.real("--hidden-dropout", 0.1) > 0,
        vocab_multiple=settings.size("--make-vocab-size-divisible-by", 128),
        loss="vocab-parallel-fused" if fused_loss else "vocab-parallel",
        held_logit_grads=deferred,
        fixed_workspace=settings.flag("--deterministic-mode"),
    )


def is_megatron(values: Mapping[str, Any]) -> bool:
    """Whether these are arguments of Megatron-LM: its names for the model or the cuts are among them."""
    return any(name in values for name in OWN_NAMES)
