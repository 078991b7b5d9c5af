"""torchrun's own agent with ranks that are forks of a warm Python: ``python -m tests.plain_torchrun RANKS SCRIPT``.

The command ``torchrun`` is `torch.distributed.launcher.elastic_launch` behind a command line: the same rendezvous, the
same agent, the same variables for each rank. Its ranks are new Pythons, which import torch for seconds of a core. Here
they are forks of this process, and as it is itself a fork of the warm Python (`tests.warm_python`), nobody imports
torch. A rank that asks for `workshop` is refused.
"""

from __future__ import annotations

import runpy
import sys
import uuid
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main(ranks: str, script: str) -> None:
    """Run ``script`` on so many ranks, and raise where one fails."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, as_program)(script)


def as_program(script: str) -> None:
    """In a rank: be ``python SCRIPT``, without `workshop`."""
    sys.modules["workshop"] = None  # type: ignore[assignment] # what Python itself says of a module that must not be
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
