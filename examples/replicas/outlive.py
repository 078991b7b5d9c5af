"""A training that outlives a replica (torchft): who dies is done without, who comes back learns from a peer.

    %torchrun --replicas 3 --max-restarts 1 examples/replicas/outlive.py --kill 2

Each replica trains on data of its own; in each step the gradients are averaged over all that are there. It
ends when all have been there for 20 steps in a row: one that is killed after ten must first have come back.

The average is taken by hand: on gloo, the DistributedDataParallel of torchft 0.2 raises where a peer dies
while it reduces, and those who live would die of it. Without a notebook: a `torchft_lighthouse`, and for each
replica a torchrun of its own, with `--max-restarts 1` and the environment
`REPLICA_GROUP_ID=i TORCHFT_LIGHTHOUSE=http://HOST:PORT`.
"""

import argparse
import hashlib
import logging
import os
import signal
import time
from datetime import timedelta

import torch
from torchft import Manager, Optimizer, ProcessGroupGloo

TOGETHER = 20

arguments = argparse.ArgumentParser()
arguments.add_argument("--kill", type=int, metavar="R", help="rank 0 of this replica is killed, once")
arguments.add_argument("--step-seconds", type=float, default=0.01, help="what else a step does")
arguments = arguments.parse_args()

replica, num_replicas = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ.get("NUM_REPLICA_GROUPS", "3"))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(100 * replica + attempt)  # other data everywhere; the manager makes the first weights equal
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
progress = {"together": 0}  # steps in a row with all replicas; the same number on each of them


def take_from_peer(state: dict) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    progress.update(state["progress"])
    if manager.current_step() > 0:
        print("takes the state of a peer", flush=True)


logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)  # a lost peer is told in twenty lines else
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
    min_replica_size=1,
    load_state_dict=take_from_peer,
    state_dict=lambda: {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "progress": dict(progress),
    },
    replica_id=f"replica_{replica}",
)
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
dies = replica == arguments.kill and attempt == 0 and os.environ["RANK"] == "0"
there = None
while progress["together"] < TOGETHER:
    began, before = time.monotonic(), manager.current_step()
    optimizer.zero_grad()
    inputs = torch.randn(32, 16)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    if dies and progress["together"] == TOGETHER // 2:
        manager.wait_quorum()  # the others count on us in this step
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    works = [manager.allreduce(parameter.grad) for parameter in model.parameters()]
    all(work.wait() for work in works)  # after one that failed, none of the others is waited for
    optimizer.step()  # steps only where everything went well
    if manager.current_step() == before:
        print("the work of a step is lost", flush=True)
        continue
    if manager.num_participants() != there:
        there = manager.num_participants()
        print(f"{there} of {num_replicas} take part", flush=True)
    progress["together"] = progress["together"] + 1 if there == num_replicas else 0
    time.sleep(arguments.step_seconds)

weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print("ended at step", manager.current_step(), "with weights", hashlib.sha256(weights).hexdigest()[:8])
manager.shutdown()
