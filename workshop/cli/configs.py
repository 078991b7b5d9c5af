"""``workshop configs``: a run as the files of Accelerate, DeepSpeed and FSDP; and somebody's file read.

    workshop configs accelerate RUN.toml > accelerate.yaml
    workshop configs deepspeed RUN.toml > deepspeed.json
    workshop configs fsdp RUN.toml
    workshop configs vllm RUN.toml CHECKPOINT
    workshop configs sglang RUN.toml CHECKPOINT
    workshop configs read FILE --model llama-3-8b --device H100 --micro-batch 1 --seq-len 8192

``read`` takes a file of Accelerate, DeepSpeed, torchtitan, Megatron-LM or NeMo.

Exit code 0: written, or nothing certain is wrong; 1: something is wrong with the file that was read, or it
says what is not modelled, or needs more memory than there is; 2: a wrong call, or what cannot be written.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from typing import Any

from workshop.cli.named_model import named_model
from workshop.cli.predict import or_reason, traffic_json
from workshop.configs.accelerate_yaml import accelerate_yaml
from workshop.configs.deepspeed_json import deepspeed_json
from workshop.configs.fsdp_policy import fsdp_plugin_arguments, trainer_arguments
from workshop.configs.overrides import Overrides
from workshop.configs.reading import Reading, read_config
from workshop.configs.serve_command import sglang_command, vllm_command
from workshop.configs.unset import comment_lines, unset_by_deepspeed
from workshop.facts.run import Adapter, Run, read_run
from workshop.facts.serving import Serving
from workshop.predict.memory import MemoryPrediction, predict_memory
from workshop.predict.traffic import predict_traffic


def run(options: argparse.Namespace) -> int:
    """The command."""
    if options.what == "read":
        return _read(options)
    if not options.run_file.is_file():
        raise ValueError(f"there is no file {options.run_file}")
    wanted = read_run(options.run_file)
    text = _written(wanted, options)
    if options.what == "deepspeed":  # JSON has no comments
        unset = unset_by_deepspeed(wanted, optimizer_is_set=options.lr is not None)
        print("\n".join(comment_lines(unset)), file=sys.stderr)
    if options.output is not None:
        options.output.write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


def _written(wanted: Run, options: argparse.Namespace) -> str:
    """The text of the file that is asked for."""
    if options.what == "accelerate":
        return accelerate_yaml(
            wanted,
            options.engine,
            wrap_class=options.wrap_class,
            gradient_clipping=options.gradient_clipping,
            deepspeed_file=options.deepspeed_file,
        )
    if options.what in ("vllm", "sglang"):
        return _server(wanted, options)
    if options.what == "deepspeed":
        return deepspeed_json(wanted, lr=options.lr, gradient_clipping=options.gradient_clipping)
    arguments = trainer_arguments if options.trainer else fsdp_plugin_arguments
    return json.dumps(arguments(wanted, options.wrap_class), indent=2) + "\n"


def _server(wanted: Run, options: argparse.Namespace) -> str:
    """The line that starts a server."""
    serving = Serving(
        wanted,
        options.weights,
        options.kv,
        batched_tokens=options.chunk,
        draft=options.draft,
        draft_tokens=options.draft_tokens,
    )
    command = vllm_command if options.what == "vllm" else sglang_command
    words = command(serving, options.checkpoint, quantized_checkpoint=options.quantized)
    return shlex.join(words) + "\n"


def _read(options: argparse.Namespace) -> int:
    overrides = Overrides(
        model=named_model(options.model) if options.model else "",
        device=options.device,
        micro_batch=options.micro_batch,
        seq_len=options.seq_len,
        accumulation=options.accumulation,
        optimizer=options.optimizer,
        precision=options.precision,
        recompute=options.recompute,
        adapter=Adapter(rank=options.lora) if options.lora else None,
        num_processes=options.num_processes,
        layer=options.wrap_class,
        program=options.program,
    )
    config_read = read_config(options.config_file, overrides)
    memory = predict_memory(config_read.run) if config_read.run is not None else None
    if options.json:
        print(json.dumps(as_json(config_read, memory), indent=1))
    else:
        print(as_text(config_read, memory))
    return (
        1
        if config_read.certain
        or config_read.not_modelled
        or (memory is not None and memory.interval[0] > memory.capacity)
        else 0
    )


def as_text(config_read: Reading, memory: MemoryPrediction | None) -> str:
    """What a person reads."""
    sections = [str(config_read)]
    if config_read.run is not None and memory is not None:
        wanted = config_read.run
        sections.append(
            f"{wanted.model.name} on {wanted.cluster.name}: {wanted.global_batch:,} sequences of "
            f"{wanted.seq_len:,} tokens a step "
            f"(micro-batch {wanted.micro_batch}, {wanted.accumulation} a rank)\n"
            f"{memory}"
        )
        sections.append(str(or_reason(predict_traffic, wanted)))
    return "\n\n".join(sections)


def as_json(config_read: Reading, memory: MemoryPrediction | None) -> dict[str, Any]:
    """What a program reads."""
    traffic = or_reason(predict_traffic, config_read.run) if config_read.run is not None else ""
    return {
        "kind": config_read.kind,
        "engine": config_read.parsed.engine,
        "mistakes": [asdict(mistake) for mistake in config_read.mistakes],
        "not_understood": list(config_read.unread),
        "without_effect": list(config_read.parsed.without_effect),
        "notes": list(config_read.parsed.notes),
        "not_modelled": list(config_read.not_modelled),
        "lacking": list(config_read.lacking),
        "run": config_read.run and _run_json(config_read.run),
        "memory": memory
        and {
            "device_bytes": int(memory.device[memory.worst_stage]),
            "device_bytes_interval": list(memory.interval),
            "capacity_bytes": memory.capacity,
            "verdict": memory.verdict,
        },
        "traffic": None if isinstance(traffic, str) else traffic_json(traffic),
        "no_traffic_because": traffic if isinstance(traffic, str) else "",
    }


def _run_json(wanted: Run) -> dict[str, Any]:
    return {
        "model": wanted.model.name,
        "cluster": wanted.cluster.name,
        "layout": asdict(wanted.layout),
        "micro_batch": wanted.micro_batch,
        "accumulation": wanted.accumulation,
        "global_batch": wanted.global_batch,
        "seq_len": wanted.seq_len,
        "optimizer": wanted.optimizer,
        "implementation": wanted.implementation.name,
    }
