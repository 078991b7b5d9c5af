"""The command lines of vLLM and SGLang for a run that serves.

Both are told the same facts in words of their own::

    Serving                     vllm serve MODEL                 python3 -m sglang.launch_server
    layout.tensor               --tensor-parallel-size           --tp-size
    layout.pipeline             --pipeline-parallel-size         --pp-size
    layout.replicate            --data-parallel-size             --dp-size
    layout.expert               --enable-expert-parallel         --ep-size
    run.seq_len                 --max-model-len                  --context-length
    run.micro_batch             --max-num-seqs                   --max-running-requests
    precision's format          --dtype                          --dtype
    weights                     --quantization                   --quantization
    kv                          --kv-cache-dtype                 --kv-cache-dtype
    block_size                  --block-size                     --page-size
    memory_share                --gpu-memory-utilization         --mem-fraction-static
    batched_tokens              --max-num-batched-tokens         --chunked-prefill-size
    prefix_cache                --enable-prefix-caching          --disable-radix-cache
    draft, draft_tokens         --speculative-config             --speculative-...

The shares of memory are not the same: vLLM's is of everything, SGLang's of weights and cache alone, and what
else it needs comes on top. Every line is checked against the options that the programs declare
(`serving_options`), and refused where a run wants what a program does not take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from workshop.configs.serving_options import (
    SGLANG,
    SGLANG_CHOICES,
    SGLANG_VERSION,
    VLLM,
    VLLM_CHOICES,
    VLLM_VERSION,
)
from workshop.facts.checks import check_choice, check_one_line, nearest
from workshop.facts.serving import Serving

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
VLLM_WEIGHTS = {"bf16": "", "fp16": "", "fp32": "", "fp8": "fp8", "int8": "int8_per_channel_weight_only"}
SGLANG_WEIGHTS = {"bf16": "", "fp16": "", "fp32": "", "fp8": "fp8"}
"""What each program quantizes by itself while it loads 16-bit weights."""
VLLM_KV = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "int8": "int8_per_token_head"}
SGLANG_KV = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}

Option = tuple[str, str | None]
"""A name without dashes and its value; None for a switch."""


def vllm_command(serving: Serving, checkpoint: str, *, quantized_checkpoint: bool = False) -> list[str]:
    """The words of ``vllm serve`` for a run.

    checkpoint: a folder, or a name of the Hugging Face Hub. quantized_checkpoint: its weights are in the
    format of `weights` already; vLLM reads from its configuration how.
    Raises ValueError with all that vLLM does not take, and what would do.
    """
    problems = _problems(serving, "vLLM", checkpoint)
    quantization = _weights(serving, "vLLM", VLLM_WEIGHTS, quantized_checkpoint, problems)
    kv = _kv(serving, "vLLM", VLLM_KV, problems)
    run, limit = serving.run, serving.batched_tokens
    if limit and limit < run.micro_batch:
        problems.append(f"batched_tokens = {limit} is fewer than micro_batch = {run.micro_batch} requests")
    _refuse("vLLM", problems)
    options: list[Option] = [
        ("dtype", DTYPES[serving.dtype]),
        *_sizes(serving, "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        *([("enable-expert-parallel", None)] if run.layout.expert > 1 else []),
        ("max-model-len", str(run.seq_len)),
        ("max-num-seqs", str(run.micro_batch)),
        ("block-size", str(serving.block_size)),
        ("kv-cache-dtype", kv),
        ("gpu-memory-utilization", f"{serving.memory_share:g}"),
        *_chunks_of_vllm(serving),
        ("enable-prefix-caching" if serving.prefix_cache else "no-enable-prefix-caching", None),
        *([("quantization", quantization)] if quantization else []),
    ]
    if serving.draft:
        config = {"model": serving.draft, "num_speculative_tokens": serving.draft_tokens}
        options.append(("speculative-config", json.dumps(config)))
    return ["vllm", "serve", checkpoint, *_checked(f"vLLM {VLLM_VERSION}", options, VLLM, VLLM_CHOICES)]


def sglang_command(serving: Serving, checkpoint: str, *, quantized_checkpoint: bool = False) -> list[str]:
    """The words of ``python3 -m sglang.launch_server`` for a run; arguments as in `vllm_command`.

    Raises ValueError with all that SGLang does not take, and what would do.
    """
    problems = _problems(serving, "SGLang", checkpoint)
    quantization = _weights(serving, "SGLang", SGLANG_WEIGHTS, quantized_checkpoint, problems)
    kv = _kv(serving, "SGLang", SGLANG_KV, problems)
    _refuse("SGLang", problems)
    run = serving.run
    options: list[Option] = [
        ("model-path", checkpoint),
        ("dtype", DTYPES[serving.dtype]),
        *_sizes(serving, "tp-size", "pp-size", "dp-size"),
        *([("ep-size", str(run.layout.expert))] if run.layout.expert > 1 else []),
        ("context-length", str(run.seq_len)),
        ("max-running-requests", str(run.micro_batch)),
        ("page-size", str(serving.block_size)),
        ("kv-cache-dtype", kv),
        ("mem-fraction-static", f"{serving.memory_share:g}"),
        ("chunked-prefill-size", str(serving.batched_tokens or -1)),
        *([] if serving.prefix_cache else [("disable-radix-cache", None)]),
        *([("quantization", quantization)] if quantization else []),
    ]
    if serving.draft:  # one chain of drafts: a tree of one branch
        options += [
            ("speculative-algorithm", "STANDALONE"),
            ("speculative-draft-model-path", serving.draft),
            ("speculative-num-steps", str(serving.draft_tokens)),
            ("speculative-eagle-topk", "1"),
            ("speculative-num-draft-tokens", str(serving.draft_tokens + 1)),
        ]
    return [
        "python3",
        "-m",
        "sglang.launch_server",
        *_checked(f"SGLang {SGLANG_VERSION}", options, SGLANG, SGLANG_CHOICES),
    ]


def _problems(serving: Serving, program: str, checkpoint: str) -> list[str]:
    """What neither program takes."""
    check_one_line("checkpoint", checkpoint)
    layout, cluster = serving.run.layout, serving.run.cluster
    problems: list[str] = []
    if not checkpoint or checkpoint.startswith("-"):
        problems.append(f"checkpoint {checkpoint!r}: name a folder or a model of the hub")
    if layout.context > 1:
        problems.append(f"context = {layout.context}: cut a model by tensor or pipeline instead")
    if layout.expert > 1 and layout.expert != layout.tensor * layout.replicate:
        problems.append(
            f"expert = {layout.expert}: experts are dealt out over all {layout.tensor * layout.replicate} "
            f"ranks of a stage; use expert = {layout.tensor * layout.replicate}, or 1"
        )
    if cluster.num_nodes > 1 and not cluster.shared_memory:
        problems.append(
            f"{cluster.name} is {cluster.num_nodes} nodes: one line starts the ranks of one; write one for "
            "each replica, and put a router before them"
        )
    if serving.kv_layers:
        problems.append(
            f"kv_layers = {serving.kv_layers}: which layers share is said by the model's configuration"
        )
    if serving.quantized_head:
        problems.append(f"quantized_head: {program} keeps the output head as the checkpoint has it")
    return problems


def _weights(serving: Serving, program: str, takes: dict[str, str], ready: bool, problems: list[str]) -> str:
    """The value of the quantization option; "" for none."""
    if ready:
        return ""
    if serving.weights not in takes:
        made = ", ".join(name for name, to in takes.items() if to)
        problems.append(
            f"weights = {serving.weights!r}: {program} makes {made} from 16 bits by itself; for others name "
            "a checkpoint that is quantized already, with quantized_checkpoint"
        )
        return ""
    return takes[serving.weights]


def _kv(serving: Serving, program: str, takes: dict[str, str], problems: list[str]) -> str:
    """The value of the option for the cache's format."""
    if serving.kv == serving.dtype:
        return "auto"
    if serving.kv not in takes:
        known = ", ".join(takes)
        problems.append(
            f"kv = {serving.kv!r} is not {program}'s; it keeps {serving.dtype} (the model's), {known}"
        )
        return "auto"
    return takes[serving.kv]


def _refuse(program: str, problems: list[str]) -> None:
    if problems:
        raise ValueError(f"{program} cannot serve this run:\n- " + "\n- ".join(problems))


def _sizes(serving: Serving, tensor: str, pipeline: str, data: str) -> list[Option]:
    """The cuts that are more than one."""
    layout = serving.run.layout
    sizes = ((tensor, layout.tensor), (pipeline, layout.pipeline), (data, layout.replicate))
    return [(name, str(size)) for name, size in sizes if size > 1]


def _chunks_of_vllm(serving: Serving) -> list[Option]:
    """Chunks of a prompt, or none: then a pass takes the longest prompt whole."""
    if serving.batched_tokens:
        return [("enable-chunked-prefill", None), ("max-num-batched-tokens", str(serving.batched_tokens))]
    most = max(serving.run.seq_len, serving.run.micro_batch)
    return [("no-enable-chunked-prefill", None), ("max-num-batched-tokens", str(most))]


def _checked(
    program: str, options: list[Option], known: frozenset[str], choices: Mapping[str, Sequence[str]]
) -> list[str]:
    """Words of options that are known, with values that they take. ValueError names the nearest otherwise."""
    words: list[str] = []
    for name, value in options:
        plain = name.removeprefix("no-") if value is None else name
        if plain not in known:
            raise ValueError(f"{program} has no option --{name}{nearest(name, known)}")
        if value is not None and name in choices:
            check_choice(f"value of {program}'s --{name}", value, choices[name])
        words += [f"--{name}"] if value is None else [f"--{name}", value]
    return words
