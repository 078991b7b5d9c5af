"""The options of ``workshop configs``; the command itself is `workshop.cli.configs`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_configs(commands: argparse._SubParsersAction) -> None:
    """Add the command and its parts to the parser."""
    configs = commands.add_parser(
        "configs",
        help="write a run for Accelerate, DeepSpeed, FSDP, vLLM or SGLang; read such a file",
        description="Translate a run for other programs, or read their file: what it trains, what it needs, "
        "and what goes wrong with it in silence. Exit code 0: written, or nothing wrong; 1: something is "
        "wrong, or it does not fit; 2: a wrong call.",
    )
    parts = configs.add_subparsers(dest="what", required=True, metavar="WHAT")
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
        type=float,
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
    part.add_argument("--lr", type=float, metavar="X", help="name the optimizer too, with this learning rate")
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
        "--chunk", type=_count, default=0, metavar="N", help="most tokens of a pass; longer prompts are cut"
    )
    part.add_argument("--draft", default="", metavar="CHECKPOINT", help="a small model that speculates")
    part.add_argument("--draft-tokens", type=_count, default=0, metavar="N", help="... so many tokens ahead")


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
        part.add_argument(f"--{name}", type=_count, default=0, metavar="N", help=words)
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
