"""A Python whose torch is a stand-in: ranks of a job start in half a second.

Six seconds of a core go into importing torch for a job of one rank. Where a test is about the scheduler, this
stands in: it starts the ranks of one node, and hands a SIGTERM on to them, as torchrun does.
"""

from __future__ import annotations

import sys
from pathlib import Path

STAND_IN = {
    "torch/__init__.py": """\
from torch import cuda

class Tensor:
    pass

def set_num_threads(count):
    pass

def seed():
    pass
""",
    "torch/cuda.py": "def device_count():\n    return 0\n",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel.py": "class DistributedDataParallel:\n    pass\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": """\
import argparse, os, signal, subprocess, sys

parser = argparse.ArgumentParser()
for flag in ("--nnodes", "--nproc-per-node", "--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--max-restarts"):
    parser.add_argument(flag)
parser.add_argument("--module")
parser.add_argument("arguments", nargs="*")
asked = parser.parse_args()
assert asked.nnodes == "1", "this stand-in knows one node"
world, ranks = int(asked.nproc_per_node), []
for rank in range(world):
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.getpid(), "TORCHELASTIC_RESTART_COUNT": 0}
    own = {name: str(value) for name, value in own.items()}
    command = [sys.executable, "-m", asked.module, *asked.arguments]
    ranks.append(subprocess.Popen(command, env=os.environ | own, start_new_session=True))
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
sys.exit(int(any([rank.wait() for rank in ranks])))
""",
}


def python_without_torch(base: Path) -> str:
    """A Python for a site's file, made below ``base``, which the nodes can read."""
    program = base / "python"
    if not program.exists():
        for name, text in STAND_IN.items():
            path = base / "stand_in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        path = f"{base / 'stand_in'}:{Path(__file__).parents[2]}"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
        program.chmod(0o755)
    return str(program)
