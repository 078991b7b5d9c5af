r"""Perplexity of SmolLM2-135M with all its layers quantized: by hand, and by the libraries.

    python -m benchmarks.quantization --json data/measurements/quantization.json
    python -m benchmarks.quantization --only modelopt --layers 10 --without-ties \
        --json data/measurements/quantization_pairs.json

The full-size record behind lesson 53, which quantizes only some layers so as not to wait. Calibration:
the first tokens of each State of the Union address from 1850 to 1861. Scored: Lincoln's of 1863. Each line is
a fresh model. modelopt's GPTQ takes some twenty seconds a layer on two cores: ten minutes for its two lines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workshop.assets import language_model, text
from workshop.compress.quantize import Grid
from workshop.compress.quantize_library import (
    bitsandbytes_bytes_per_weight,
    bitsandbytes_layers,
    modelopt_layers,
    torchao_layers,
)
from workshop.compress.quantize_model import (
    bytes_per_weight,
    calibrate_layers,
    layer_linears,
    packed_layers,
    perplexity,
    round_layers,
    with_awq,
    with_gptq,
)

SCORED = "1863_abraham_lincoln_r"
CALIBRATION_YEARS = range(1850, 1862)
Change = Callable[[nn.Module], None]


def batches(tokenizer: Any, name: str, sequences: int, length: int) -> list[Tensor]:
    """The first tokens of an address: one batch (sequences, length)."""
    tokens = tokenizer(text.load("sotu")[name], return_tensors="pt").input_ids[0]
    return [tokens[: sequences * length].view(sequences, length)]


def calibration(tokenizer: Any, length: int) -> list[Tensor]:
    """The first tokens of each year's address, six sequences to a batch."""
    years = [name for name in text.load("sotu") if int(name[:4]) in CALIBRATION_YEARS]
    rows = torch.cat([batches(tokenizer, name, 1, length)[0] for name in years])
    return list(rows.split(6))


def contenders(seen: list[Tensor], layers: int | None) -> dict[str, Change]:
    """Each way to quantize, by the name it has in the record."""
    grids = {
        "int8": Grid(8, None),
        "int4": Grid(4, 64),
        "int3": Grid(3, 64),
        "int4 fp32 scales": Grid(4, 64, scale_dtype=torch.float32),
    }
    same = grids["int4 fp32 scales"]
    changes: dict[str, Change] = {"int8 rtn": partial(round_layers, grid=grids["int8"], num_layers=layers)}
    for bits in ("int4", "int3"):
        grid = grids[bits]
        changes[f"{bits} rtn"] = partial(round_layers, grid=grid, num_layers=layers)
        for name, method in (("gptq", with_gptq(grid)), ("awq", with_awq(grid))):
            changes[f"{bits} {name}"] = partial(
                calibrate_layers, method=method, batches=seen, num_layers=layers
            )
    changes["int4 rtn, asymmetric"] = partial(
        round_layers, grid=Grid(4, 64, symmetric=False), num_layers=layers
    )
    changes["int4 rtn, blocks of 32, asymmetric"] = partial(
        round_layers, grid=Grid(4, 32, symmetric=False), num_layers=layers
    )
    for name, method in (("gptq", with_gptq(same, True)), ("awq", with_awq(same, 10, True))):
        changes[f"int4 {name}, as modelopt"] = partial(
            calibrate_layers, method=method, batches=seen, num_layers=layers
        )
    for name in ("max", "gptq", "awq"):
        changes[f"modelopt int4 {name}"] = partial(
            modelopt_layers, method=name, grid=same, batches=seen, num_layers=layers
        )
    for kind in ("int8", "nf4"):
        changes[f"bitsandbytes {kind}"] = partial(bitsandbytes_layers, kind=kind, num_layers=layers)
    for bits in (8, 4):
        changes[f"torchao int{bits}"] = partial(torchao_layers, bits=bits, num_layers=layers)
    return changes


def measured_bytes(model: nn.Module) -> float | None:
    """Bytes a weight in layers that really hold few; None for fake quantization."""
    if any(True for _ in packed_layers(model)):
        return bytes_per_weight(model)
    try:
        return bitsandbytes_bytes_per_weight(model)
    except ValueError:
        return None


@torch.no_grad()
def unround(model: nn.Module) -> None:
    """Move each weight of the layers by about a thousandth of itself, at random, always in the same way.

    This model's weights lay on a grid of 4 bits before. So many are half way between two codes of ours, and
    there the last bit of a division decides: two right programs give models whose perplexities differ by
    percents.
    """
    generator = torch.Generator().manual_seed(0)
    for linear in layer_linears(model).values():
        linear.weight *= 1 + 1e-3 * torch.randn(linear.weight.shape, generator=generator)


def measure(change: Change, scored: list[Tensor], without_ties: bool) -> dict[str, Any]:
    """A fresh model, changed and scored."""
    model, _ = language_model.load("smollm2", dtype=torch.float32)
    if without_ties:
        unround(model)
    before = time.perf_counter()
    change(model)
    seconds = time.perf_counter() - before
    return {
        "perplexity": perplexity(model, scored),
        "bytes_per_weight": measured_bytes(model),
        "seconds": round(seconds, 1),
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, help="quantize so many from the first; all by default")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--sequences", type=int, default=8, help="of the scored address")
    parser.add_argument(
        "--without-ties", action="store_true", help="move weights off the grid they come from"
    )
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--json", type=Path, help="write the record here")
    return parser.parse_args()


def main() -> None:
    """Measure, show, write."""
    how = arguments()
    _, tokenizer = language_model.load("smollm2")
    scored = batches(tokenizer, SCORED, how.sequences, how.length)
    seen = calibration(tokenizer, how.length)
    ways: dict[str, Change] = {"fp32": lambda _: None, **contenders(seen, how.layers)}
    results: dict[str, Any] = {}
    for name, change in ways.items():
        if how.only not in name:
            continue
        results[name] = measure(change, scored, how.without_ties)
        print(f"{name:<44} {results[name]}", flush=True)
    if how.json:
        how.json.write_text(json.dumps(record(how, scored, seen, results), indent=1) + "\n", "utf-8")


def record(how: argparse.Namespace, scored: list[Tensor], seen: list[Tensor], results: Any) -> dict[str, Any]:
    """The results, with what a reader needs to make them again."""
    packages = ("torch", "transformers", "nvidia-modelopt", "bitsandbytes", "torchao")
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python -m benchmarks.quantization", *sys.argv[1:]]),
        "machine": {"cores": os.cpu_count(), "cpu": torch.backends.cpu.get_cpu_capability()},
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "layers": how.layers or "all",
        "without_ties": how.without_ties,
        "scored": {"text": SCORED, "tokens": sum(batch.numel() for batch in scored)},
        "calibration": {"years": "1850 to 1861", "tokens": sum(batch.numel() for batch in seen)},
        "results": results,
    }


if __name__ == "__main__":
    main()
