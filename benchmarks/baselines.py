"""The same work under torchrun, nbdistributed, ipyparallel and Monarch, each used as its own pages say.

They are not dependencies of the workshop: `pip install 'large-model-workshop[bench]'` gets them. One that is
not installed is named and left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.notebook_clock import CellFailed, notebook, spread
from workshop.site.current import rank_environment

CELL = "y = 1 + 1"


def torchrun(program: Path, world_size: int, times: int) -> dict[str, float]:
    """`python -m torch.distributed.run` on the program, from nothing to its end each time."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    seconds = []
    for _ in range(times + 1):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, *launcher, str(program)],
            check=True,
            capture_output=True,
            timeout=120,
            env=rank_environment(os.environ),
        )
        seconds.append(time.perf_counter() - started)
    return spread(seconds[1:])  # the first one fills the disk cache


def nbdistributed(world_size: int, times: int, directory: Path) -> dict[str, Any]:
    """`%dist_init`, then `%%distributed` cells.

    Its `%dist_shutdown` ends processes of the machine by name patterns ("python.*worker"), which may be
    anybody's. It is not called here; a `pkill` that does nothing stands first on the kernel's PATH all the
    same, and its workers are ended by number with the kernel.
    """
    harmless = directory / "no-pkill"
    harmless.mkdir(exist_ok=True)
    (harmless / "pkill").write_text("#!/bin/sh\nexit 1\n")
    (harmless / "pkill").chmod(0o755)
    with notebook(directory, path_first=harmless) as cells:
        load = cells.run("%load_ext nbdistributed")
        start = cells.run(f"%dist_init -n {world_size}")
        for _ in range(2):  # the first cell after the start may be lost
            cells.run(f"%%distributed\n{CELL}")
            cells.run("%%distributed\nprint('rank', rank, y)")
        if "rank 1 2" not in " ".join(cells.printed.split()):
            raise CellFailed(f"nbdistributed's workers do not answer: {cells.printed!r}")
        return {
            "load": load,
            "start": start,
            "cell": spread(cells.time_cells(f"%%distributed\n{CELL}", times)),
            "magic": spread(cells.time_magic("distributed", CELL, times)),
        }


def ipyparallel(world_size: int, times: int, directory: Path) -> dict[str, Any]:
    """A cluster of engines, then `%%px` cells."""
    with notebook(directory) as cells:
        load = cells.run("import ipyparallel as ipp")
        start = cells.run(
            f"cluster = ipp.Cluster(n={world_size}, log_level=40)\n"
            "client = cluster.start_and_connect_sync(activate=True)"
        )
        torch = cells.run("%%px\nimport torch")  # our ranks have it when they start
        cell = spread(cells.time_cells(f"%%px\n{CELL}", times))
        magic = spread(cells.time_magic("px", CELL, times))
        cells.run("cluster.stop_cluster_sync()")
        return {"load": load, "start": start, "import_torch": torch, "cell": cell, "magic": magic}


# In a file: torch reads the stack while it is imported, and Monarch fetches the source of a class from a cell
# with the help of torch.
MONARCH_ACTOR = """\
from monarch.actor import Actor, endpoint

class Rank(Actor):
    def __init__(self): self.names = {}
    @endpoint
    def cell(self, code: str): exec(code, self.names)
"""
MONARCH = """\
import json, os, sys, time
os.environ["PYTHONPATH"] = %r
sys.path.append(%r)
from monarch.actor import this_host
from rank_actor import Rank

processes = this_host().spawn_procs(per_host={"ranks": %d})
actors = processes.spawn("actors", Rank)
actors.cell.call("import torch").get()
"""
TIMED_CALLS = """\
seconds = []
for _ in range(%d):
    started = time.perf_counter()
    actors.cell.call(%r).get()
    seconds.append(time.perf_counter() - started)
print("SECONDS", json.dumps(seconds[2:]))
"""


def torchmonarch(world_size: int, times: int, directory: Path) -> dict[str, Any]:
    """Two actors that execute the cell's text: "magic" is one call from inside the kernel, there and back.

    An actor's endpoint has neither output nor tracebacks of its own to bring back; it is the floor.
    """
    (directory / "rank_actor.py").write_text(MONARCH_ACTOR)
    with notebook(directory) as cells:
        start = cells.run(MONARCH % (str(directory), str(directory), world_size))
        cells.run(TIMED_CALLS % (times + 2, CELL))
        calls = json.loads(cells.printed.partition("SECONDS ")[2].partition("]")[0] + "]")
        cell = spread(cells.time_cells(f"actors.cell.call({CELL!r}).get();", times))
        cells.run("processes.stop().get();")
        return {"start": start, "cell": cell, "magic": spread(calls)}
