"""A shell script with a /dev/shm of its own: what other programs keep there is not looked at, nor changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALONE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
MOUNT = "mount -t tmpfs -o size=64m none /dev/shm"


def run_with_own_shared_memory(script: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a mount namespace of its own, with 64 MiB of /dev/shm; skips the test where that cannot be.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    if subprocess.run([*ALONE, "sh", "-c", MOUNT], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("no mount namespace of one's own here (unshare --mount)")
    return subprocess.run(
        [*ALONE, "sh", "-c", f"{MOUNT} && {{ {script}\n}}"],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=True,
    )  # fmt: skip
