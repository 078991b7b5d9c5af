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
from pathlib import Path
from typing import Any

from workshop.cli.counts import count, not_negative, positive
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop configs``."""
    parser.description = (
        "Translate a run for other programs, or read their file: what it trains, what it needs, and what "
        "goes wrong with it in silence. Exit code 0: written, or nothing wrong; 1: something is wrong, or "
        "it does not fit; 2: a wrong call."
    )
    parts = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add_accelerate(parts)
    _add_deepspeed(parts)
    _add_fsdp(parts)
    _add_server(parts, "vllm", "the line that starts vLLM")
    _add_server(parts, "sglang", "the line that starts SGLang")
    _add_read(parts)


def _writer(parts: argparse._SubParsersAction, name: str, help_text: str) -> argparse.ArgumentParser:
    part = parts.add_parser(name, help=help_text, description=f"Print {help_text}.")
    part.add_argument("run_file", type=Path, metavar="RUN.toml", help="the run; see examples/")
    part.add_argument("--output", type=Path, metavar="FILE", help="write it there instead of printing it")
    return part


def _wrap_class(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--wrap-class", default="", metavar="NAME", help="class of the layers, where the model is not known"
    )


def _clipping(part: argparse.ArgumentParser) -> None:
    part.add_argument(
        "--gradient-clipping",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="largest norm under DeepSpeed; 0: off",
    )


def _add_accelerate(parts: argparse._SubParsersAction) -> None:
    part = _writer(parts, "accelerate", "the YAML of accelerate launch")
    part.add_argument("--engine", metavar="NAME", help="ddp, fsdp or deepspeed (default: as the run says)")
    part.add_argument(
        "--deepspeed-file", default="", metavar="JSON", help="let this DeepSpeed file say the rest"
    )
    _wrap_class(part)
    _clipping(part)


def _add_deepspeed(parts: argparse._SubParsersAction) -> None:
    part = _writer(parts, "deepspeed", "the JSON of DeepSpeed")
    part.add_argument(
        "--lr", type=positive, metavar="X", help="name the optimizer too, with this learning rate"
    )
    _clipping(part)


def _add_fsdp(parts: argparse._SubParsersAction) -> None:
    part = _writer(parts, "fsdp", "the arguments of FullyShardedDataParallelPlugin, as JSON")
    part.add_argument(
        "--trainer", action="store_true", help="those of transformers.TrainingArguments instead"
    )
    _wrap_class(part)


def _add_server(parts: argparse._SubParsersAction, name: str, help_text: str) -> None:
    part = _writer(parts, name, help_text)
    part.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, or a model of the Hugging Face Hub")
    part.add_argument("--weights", default="", metavar="NAME", help="their format (default: the run's)")
    part.add_argument("--kv", default="", metavar="NAME", help="format of the KV cache (default: the run's)")
    part.add_argument(
        "--quantized", action="store_true", help="the checkpoint is in the format of --weights already"
    )
    part.add_argument(
        "--chunk", type=count, default=0, metavar="N", help="most tokens of a pass; longer prompts are cut"
    )
    part.add_argument("--draft", default="", metavar="CHECKPOINT", help="a small model that speculates")
    part.add_argument("--draft-tokens", type=count, default=0, metavar="N", help="... so many tokens ahead")


def _add_read(parts: argparse._SubParsersAction) -> None:
    part = parts.add_parser(
        "read",
        help="somebody's file: what is wrong with it, and what it needs",
        description="Read a file of Accelerate, DeepSpeed, torchtitan (TOML), Megatron-LM (a script, or "
        "arguments in a text) or NeMo (YAML). Mistakes of the first two are named with their cure. With what "
        "the file cannot say given as options, memory and traffic are predicted too.",
    )
    part.add_argument("config_file", type=Path, metavar="FILE", help="the file; told by its content")
    part.add_argument("--model", default="", metavar="NAME", help="a known model, or a TOML file of one")
    part.add_argument("--device", default="", metavar="NAME", help="of each process: H100")
    for name, words in (
        ("micro-batch", "sequences that pass a rank at once"),
        ("seq-len", "tokens of a sequence"),
        ("accumulation", "micro-batches of a step"),
        ("num-processes", "ranks, where the file does not say"),
        ("lora", "train a LoRA adapter of this rank (on q and v) instead of the model"),
    ):
        part.add_argument(f"--{name}", type=count, default=0, metavar="N", help=words)
    part.add_argument("--optimizer", default="", metavar="NAME", help="by name (default: adamw)")
    part.add_argument("--precision", default="", metavar="NAME", help="recipe, where the file leaves it open")
    part.add_argument(
        "--recompute", default="", metavar="HOW", help="none, selective or full, if the script decides"
    )
    part.add_argument(
        "--program",
        default="",
        metavar="NAME",
        help="who reads the file: accelerate (a loop of its own), trainer (of transformers), deepspeed",
    )
    _wrap_class(part)
    part.add_argument("--json", action="store_true", help="print one JSON object instead of text")


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
