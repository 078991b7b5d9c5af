"""The child process of one stage: ``python -m benchmarks.gpu NAME --folder F --size S --seconds T``."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

import torch

from benchmarks.gpu.stage import SIZES, Stage


def main() -> None:
    """Run the stage's parts, and write its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    if options.size != "full":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    stage = Stage(options.name, options.folder, options.size, options.seconds, options.together)
    stage.write()
    importlib.import_module(f"benchmarks.gpu.{options.name}").run(stage)
    stage.end()


if __name__ == "__main__":
    main()
