"""The shim for ranks without GPUs: nothing where there are GPUs. On ranks it is tested in tests/configs/test_used."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.installed import skip_without

skip_without("accelerate")

LOOK = """
import os, torch
from accelerate.state import PartialState
from workshop.parallel.accelerate_on_cpu import ranks_like_gpus
for has_gpu in (True, False):
    before, method = dict(os.environ), PartialState._prepare_backend
    torch.accelerator.is_available = lambda: has_gpu
    ranks_like_gpus()
    changed = sorted(name for name in os.environ if os.environ[name] != before.get(name))
    print(PartialState._prepare_backend is method, *changed)
"""


def test_it_changes_nothing_where_there_is_an_accelerator():
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE", "DS_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.splitlines() == [
        "True",
        "False ACCELERATE_BYPASS_DEVICE_MAP ACCELERATE_TORCH_DEVICE DS_ACCELERATOR",
    ], done.stderr
