"""Lessons 51 and 52 on several seeds: the best rate of LoRA, and what it learns beside rounded weights.

    python -m benchmarks.adapter_seeds --json data/measurements/adapter_seeds.json

The lessons train with one seed each. Here their own cells run, and behind them the same functions with other
seeds. Three minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.lesson_cells import LESSONS, executed

SEEDS = 3
FOLDER = LESSONS / "day5_adapt_compress"
RATES = f"""
import json
seeds = range({SEEDS})
losses = {{name: [losses_by_rate(config, seed) for seed in seeds] for name, config in WAYS.items()}}
print(json.dumps(losses))
"""
BESIDE = f"""
import json
learned = {{}}
for name in ("its own", "4 bits, NF4", "4 bits, equal", "3 bits, equal"):
    hold(CHANGES.get(name))
    learned[name] = [before_and_after(seed)[1] for seed in range({SEEDS})]
print(json.dumps(learned))
"""


def printed(lesson: str, last: str, source: str) -> Any:
    """What a cell behind the lesson's last one prints, as data."""
    done = executed(FOLDER / f"{lesson}.ipynb", last, {last: source})
    text = "".join(out.get("text", "") for out in done.cells[-1].outputs if out.get("name") == "stdout")
    if not text:
        raise RuntimeError(f"{lesson}: {done.cells[-1].outputs}")
    return json.loads(text.splitlines()[-1])


def main() -> None:
    """Run, print, keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record = {
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cpu": f"{platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "what": "loss on the test questions after twenty steps, by seed",
        "by_rate": printed("51_adapters", "def losses_by_rate(", RATES),
        "beside": printed("52_qlora", "%%guess beside_nf4", BESIDE),
    }
    print(json.dumps(record, indent=1))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
