"""Record one run of a real Slurm of two nodes on one machine: what lesson 61 shows where there is no Slurm.

    python benchmarks/slurm_two_nodes.py [--output data/measurements/slurm_two_nodes.json]

It needs root and Debian's slurmctld, slurmd, slurm-client and munge: `tests/cluster/slurm.py` brings them up
and takes them down. Four things: a job of two nodes beside the same program by %%torchrun; a job that waits
while others have the nodes; a training that is preempted and queued again, beside one that is not; a sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.pausing import pausing, preempt  # noqa: E402
from tests.cluster.slurm import TwoNodes  # noqa: E402
from workshop import launch  # noqa: E402
from workshop.facts.layout import Layout  # noqa: E402
from workshop.facts.run import Run  # noqa: E402
from workshop.launch import jobs  # noqa: E402
from workshop.site.job import Job  # noqa: E402
from workshop.site.spec import read_site  # noqa: E402
from workshop.train.launched import as_program, train, trained  # noqa: E402

WHO = """
import os
import time
import torch
import torch.distributed as dist
from workshop import report

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
print("the sum of all ranks, counted from 1, is", total.item())
report(total=total.item(), node=int(os.environ["GROUP_RANK"]), local_rank=int(os.environ["LOCAL_RANK"]))
dist.destroy_process_group()
"""
SWEPT = """
import torch
from workshop import report

torch.manual_seed(0)
inputs = torch.randn(256, 8)
wanted = inputs @ torch.arange(8.0)
weights = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=lr)
for step in range(20):
    loss = (inputs @ weights - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
report(loss=loss.item())
"""
SETTINGS = {"num_steps": 8, "save_every": 2, "log_every": 1}


class Watched:
    """Notes every new state, and when the first output was seen, in seconds since it was made."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.states: list[tuple[float, str]] = []
        self.first_output: float | None = None

    def __call__(self, sentence: str, text: str) -> None:
        state = sentence.partition(": ")[2].partition(": ")[2]
        seconds = round(time.monotonic() - self.began, 2)
        if not self.states or self.states[-1][1] != state:
            self.states.append((seconds, state))
        if text and self.first_output is None:
            self.first_output = seconds


def two_nodes(site):
    """The job beside the same program by torchrun."""
    launch.torchrun("import torch", 4)  # the engine is warm
    began = time.monotonic()
    launch.torchrun(WHO, 4)
    here = time.monotonic() - began
    watched = Watched()
    job = jobs.submit(WHO, Job("who", "", nnodes=2, nproc_per_node=2), site)
    handed_in = time.monotonic() - watched.began
    result = job.follow(watched)
    return {
        "torchrun_seconds": round(here, 2),
        "handed_in_seconds": round(handed_in, 2),
        "states": watched.states,
        "first_output_seconds": watched.first_output,
        "seconds": round(time.monotonic() - watched.began, 2),
        "text": result.text,
        "reports": [dict(result[rank]) for rank in range(4)],
    }


def waiting(site, slurm, folder):
    """Others have both nodes for three seconds."""
    others = folder / "others.sh"
    others.write_text("#!/bin/bash\nsleep 3\n")
    slurm.ask("sbatch", "-N2", "--exclusive", "--time=00:01:00", "-o", "/dev/null", str(others))
    time.sleep(1.5)
    watched = Watched()
    jobs.submit("print()", Job("waits", "", nnodes=2, nproc_per_node=1), site).follow(watched)
    return {"states": [(seconds, state.partition(", expected")[0]) for seconds, state in watched.states]}


def preempted(site, slurm, folder):
    """A training that loses its nodes after step 4, and one that does not."""
    run = Run("gpt-1m", "this-machine", Layout(precision="fp32"), seq_len=32, global_batch=4)
    alone = train(run, measured=False, **SETTINGS)
    run = Run("gpt-1m", "this-machine", Layout(precision="fp32", replicate=4), seq_len=32, global_batch=4)
    program, variables = as_program(run, measured=False, **SETTINGS)
    job = jobs.submit(
        pausing(program),
        Job("train", "", nnodes=2, nproc_per_node=2, requeue=True),
        site,
        variables=variables,
    )
    files = job.directory / "task_0" / "files"
    while not (files / "paused").exists():
        time.sleep(0.1)
    preempt(slurm, folder)
    watched = Watched()
    result = job.follow(watched)
    lines = [json.loads(line) for line in (files / "log.jsonl").read_text().splitlines()]
    return {
        "alone": list(alone.losses),
        "log": [[line["step"], line["loss"]] for line in lines],
        "first_step_of_second_start": trained(result, measured=False).first_step,
        "states": watched.states,
        "text": result.text,
    }


def swept(site):
    """One job, three values."""
    values = (0.003, 0.03, 0.3)
    sweep = jobs.Sweep("lr", values)
    results = jobs.submit(SWEPT, Job("sweep", "", nproc_per_node=1), site, sweep=sweep).follow()
    return {"values": values, "losses": [results[task][0].loss for task in results]}


def main() -> None:
    """Bring Slurm up, record, take it down, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "data" / "measurements" / "slurm_two_nodes.json"
    )
    output = parser.parse_args().output
    base = Path(tempfile.mkdtemp(prefix="workshop-slurm-"))
    base.chmod(0o755)
    slurm = TwoNodes(base)
    try:
        slurm.start()
        os.environ.update(SLURM_CONF=str(slurm.configuration), WORKSHOP_SITE=str(slurm.site))
        site = read_site(slurm.site)
        import torch

        record = {
            "what": "jobs on a real Slurm of two nodes of two cores each, both on one machine",
            "date": time.strftime("%Y-%m-%d"),
            "device": f"{os.cpu_count()} CPU cores, {platform.machine()}, Linux; both nodes share them",
            "versions": {
                "slurm": slurm.ask("sinfo", "--version").split()[-1],
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            },
            "command": "python benchmarks/slurm_two_nodes.py",
            "two_nodes": two_nodes(site),
            "waiting": waiting(site, slurm, base),
            "preempted": preempted(site, slurm, base),
            "sweep": swept(site),
        }
    finally:
        left = slurm.stop()
        shutil.rmtree(base)
    assert left == [], left
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
