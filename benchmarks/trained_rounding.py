"""Lesson 53's table of four layers in 3 bits, with weights that chance has moved: which order is luck?

    python -m benchmarks.trained_rounding --seeds 3 --json data/measurements/trained_rounding.json

Nothing in that table is random. So each weight is moved by about a thousandth of itself before the lesson's
own cells run, once for each seed, and the last line is the lesson as it is. Two minutes a seed on two cores.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.lesson_cells import LESSONS, executed

LESSON = LESSONS / "day5_adapt_compress" / "53_quantization.ipynb"
LOADED, TABLE = "smol, tokenizer = language_model.load(", 'for name in ("int3 rtn", "int3 GPTQ"'
MOVE = """
torch.manual_seed({seed})
with torch.no_grad():
    for weight in smol.parameters():
        weight.mul_(1 + 1e-3 * torch.randn_like(weight))
"""
ROW = re.compile(r"^(int3 [\w, ]+?) +([\d,]+) +(\d+\.\d\d) ", re.M)


def table(seed: int | None) -> dict[str, float]:
    """Perplexity by method, as the lesson prints it; seed: of what moves the weights, None for nothing."""
    added = {} if seed is None else {LOADED: MOVE.format(seed=seed)}
    done = executed(LESSON, TABLE, added)
    printed = "".join(out.get("data", {}).get("text/plain", "") for out in done.cells[-1].outputs)
    perplexities = {name: float(value) for name, _, value in ROW.findall(printed)}
    if len(perplexities) != 4:
        raise RuntimeError(f"the lesson's table is not there: {done.cells[-1].outputs}")
    return perplexities


def main() -> None:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in (*range(options.seeds), None):
        rows.append({"seed": seed, **table(seed)})
        print(rows[-1], flush=True)
    if options.json:
        about = {
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "cpu": f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
            "what": "perplexity on 512 tokens, four layers in 3 bits; weights moved by 1e-3 of themselves",
        }
        options.json.write_text(json.dumps({**about, "runs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
