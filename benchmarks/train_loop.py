"""Tokens per second of our training loop, beside transformers.Trainer, Lightning and Accelerate's plain loop.

    python -m benchmarks.train_loop --json data/measurements/train_loop.json
    python -m benchmarks.train_loop --gpu H100 --seq-len 2048 --json data/measurements/train_loop_gpu.json

Same model, weights, text, order, dtype, optimizer, clipping and logging for all (`train_loop_rank.py`), in
one launch, in turns; a contender's ratio to ours is taken within each round, and the median of rounds is
told. Above 1 we are quicker. On one rank Accelerate, and with it Trainer, wraps the model in DDP, as it does
under any launcher, and we do not; that is in its ratio. All four must end with the same loss, else nothing is
written: they would not have done the same work.

On a CPU the ratio is a matter of size: a loop's own Python costs a millisecond or two a step, whatever the
model. So two sizes are told, the one that lessons train and one whose step is mostly arithmetic. Wall time is
what counts; CPU seconds of the process stand beside it, because a shared machine bends wall time.

With ``--gpu NAME``: a model of a billion parameters in bf16, layers compiled, and MFU (arXiv 2204.02311,
appendix B). That part has not been run. The same contenders ran on an H200 by `benchmarks/gpu/throughput.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workshop import launch
from workshop.facts.catalogue import device
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run
from workshop.predict.flops import step_flops

RANK_PROGRAM = Path(__file__).with_name("train_loop_rank.py")
OURS = "workshop"
TARGETS = {"transformers.Trainer": 1.15, "lightning": 1.05, "accelerate": 1.0}
CPU_MODELS = {
    "lesson": ModelSpec("lesson", 2, 64, 4, 256, ffn_hidden_size=176, tied_embeddings=True),
    "gpt-1m": ModelSpec("gpt-1m, 256 words", 2, 128, 4, 256, ffn_hidden_size=352, tied_embeddings=True),
}
GPU_MODEL = ModelSpec("llama, 1.1 billion", 16, 2048, 32, 32000, ffn_hidden_size=8192, num_kv_heads=8)


def measure(spec: ModelSpec, ranks: int, how: argparse.Namespace) -> dict[str, Any]:
    """One launch: seconds a step of each contender in each round, and what follows from them."""
    fields = {k: v for k, v in asdict(spec).items() if k != "name"} | {"name": spec.name}
    shape = ["--seq-len", how.seq_len, "--micro-batch", how.micro_batch, "--steps", how.steps]
    flags = ["--bf16", "--compile"] if how.gpu else []
    arguments = ("--model", json.dumps(fields), *map(str, shape), "--rounds", str(how.rounds), *flags)
    script = launch.Script(RANK_PROGRAM, arguments)
    trained = launch.torchrun(script, ranks, limits=launch.Limits(timeout=how.timeout))
    slowest = {
        kind: {
            name: [
                max(trained[rank][kind][name][turn] for rank in range(ranks)) for turn in range(how.rounds)
            ]
            for name in trained[0]["seconds"]
        }
        for kind in ("seconds", "cpu_seconds")
    }
    check_same_work(trained[0]["losses"])
    tokens = ranks * how.micro_batch * how.seq_len
    return {
        "model": spec.name,
        "num_params": spec.num_params,
        "ranks": ranks,
        "tokens_per_step": tokens,
        "device": trained.device,
        "loss": trained[0]["losses"],
        "tokens_per_second": {n: tokens / statistics.median(s) for n, s in slowest["seconds"].items()},
        "ratio": ratios(slowest["seconds"]),
        "cpu_ratio": ratios(slowest["cpu_seconds"]),
        "seconds_per_step": slowest["seconds"],
        "cpu_seconds_per_step": slowest["cpu_seconds"],
    }


def ratios(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Median over rounds of a contender's seconds over ours in the same round."""
    mine = seconds[OURS]
    return {
        name: statistics.median(theirs / own for theirs, own in zip(turns, mine, strict=True))
        for name, turns in seconds.items()
        if name != OURS
    }


def check_same_work(losses: Mapping[str, float]) -> None:
    """All loops end with one loss, to bf16's rounding; ValueError names the one that does not."""
    for name, loss in losses.items():
        if abs(loss - losses[OURS]) > 0.01 * abs(losses[OURS]):
            raise ValueError(
                f"{name} ended with loss {loss}, ours with {losses[OURS]}: not the same training"
            )


def mfu(spec: ModelSpec, result: Mapping[str, Any], how: argparse.Namespace) -> dict[str, float]:
    """Share of the GPU's bf16 peak that each contender's arithmetic makes; its name is the catalogue's."""
    layout = Layout(replicate=result["ranks"], precision="amp-bf16")
    run = Run(spec, f"{result['ranks']}x{how.gpu}", layout, how.micro_batch, how.seq_len)
    peak = device(how.gpu).peak_flops["bf16"] * result["ranks"]
    flops_per_token = step_flops(run).model / run.tokens_per_step
    return {name: rate * flops_per_token / peak for name, rate in result["tokens_per_second"].items()}


def table(result: Mapping[str, Any]) -> str:
    """A line for each contender."""
    lines = [f"{result['model']}, {result['num_params']:,} parameters, {result['device']}"]
    for name, rate in sorted(result["tokens_per_second"].items(), key=lambda item: -item[1]):
        ratio, cpu = result["ratio"].get(name, 1.0), result["cpu_ratio"].get(name, 1.0)
        wanted = TARGETS.get(name)
        verdict = "" if wanted is None else f"  wanted {wanted:.2f}: {'yes' if ratio >= wanted else 'no'}"
        lines.append(
            f"  {name:<22} {rate:>10,.0f} tokens/s  ours/theirs {ratio:5.2f} (CPU {cpu:4.2f}){verdict}"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What a reader needs to compare."""
    packages = ("torch", "transformers", "accelerate", "lightning", "numpy")
    return {
        "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=24, help="of a contender's turn; four of them warm up")
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=540)
    parser.add_argument(
        "--gpu", default="", help="the GPU's name in the catalogue, e.g. H100: the 1B model in bf16"
    )
    parser.add_argument("--json", type=Path, help="write the record here")
    return parser.parse_args()


def main() -> None:
    """Measure, show, write."""
    how = arguments()
    specs = [GPU_MODEL] if how.gpu else list(CPU_MODELS.values())
    before, results = machine(), []
    for spec in specs:
        for ranks in how.ranks:
            result = measure(spec, ranks, how)
            if how.gpu:
                result["mfu"] = mfu(spec, result, how)
            results.append(result)
            print(table(result), flush=True)
    if how.json:
        command = " ".join(["python -m benchmarks.train_loop", *sys.argv[1:]])
        record = {
            "date": date.today().isoformat(),
            "command": command,
            "machine": before,
            "targets": TARGETS,
            "dtype": "bf16, autocast, compiled layers" if how.gpu else "fp32",
            "results": results,
        }
        how.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
