"""Ranks that share one GPU: values as over gloo, tensors on the device, a cap for each, a program that names NCCL."""

import pytest
import torch

from tests.installed import skip_without
from workshop import launch
from workshop.launch import RankFailed, Ranks

SHARED = launch.Limits(timeout=110, share_gpu=True) if hasattr(launch.Limits, "share_gpu") else None
HEAD = """
import os
import torch, torch.distributed as dist
from workshop import report
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
mine = torch.arange(4.0, device="cuda") + 10 * rank
"""
EACH = {
    "all_reduce": "dist.all_reduce(mine); out = mine",
    "mean": "dist.all_reduce(mine, op=dist.ReduceOp.AVG); out = mine",
    "broadcast": "dist.broadcast(mine, src=1); out = mine",
    "all_gather": "parts = [torch.empty_like(mine) for _ in range(size)]; dist.all_gather(parts, mine); out = torch.cat(parts)",
    "reduce_scatter": "out = torch.empty(2, device='cuda'); dist.reduce_scatter(out, list(mine.split(2)))",
    "all_to_all": "out = torch.empty_like(mine); dist.all_to_all_single(out, mine)",
    "after a kernel": "big = torch.randn(4096, 4096, device='cuda'); big @ big; mine.mul_(2); dist.all_reduce(mine); out = mine",
}
WANTED = {
    "all_reduce": [10, 12, 14, 16],
    "mean": [5, 6, 7, 8],
    "broadcast": [10, 11, 12, 13],
    "all_gather": [0, 1, 2, 3, 10, 11, 12, 13],
    "reduce_scatter": [10, 12],
    "all_to_all": [0, 1, 10, 11],
    "after a kernel": [20, 24, 28, 32],
}


def run(body, n=2):
    if torch.cuda.device_count() >= n:
        n = torch.cuda.device_count() + 1
    tail = "\nreport(out=out.tolist(), device=str(out.device), backend=dist.get_backend())\ndist.destroy_process_group()\n"
    return launch.torchrun(HEAD + body + tail, n, limits=SHARED)


@pytest.mark.parametrize("name", EACH)
def test_a_collective_of_cuda_tensors(name):
    told = run(EACH[name])
    assert told[0]["backend"] == "shared-gpu"
    assert told[0]["device"].startswith("cuda")
    assert "share one GPU" in told.device
    assert told[0]["out"] == WANTED[name]


def test_messages_cross_without_waiting_for_each_other():
    body = """
came = torch.empty(2**20, device="cuda")
ops = [dist.P2POp(dist.isend, torch.full((2**20,), float(rank), device="cuda"), 1 - rank),
       dist.P2POp(dist.irecv, came, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
out = came[-1:]
"""
    assert run(body)[0]["out"] == [1.0]


@pytest.mark.parametrize("wrap", ["DistributedDataParallel(model)", "fully_shard(model)"])
def test_ddp_and_fsdp_train_on_a_shared_gpu(wrap):
    body = f"""
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to("cuda")
net = {wrap}
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for _ in range(5):
    loss = (net(torch.ones(4, 16, device="cuda") * (rank + 1)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
out = torch.stack(losses)
dist.all_reduce(out)
del net
"""
    losses = run(body)[0]["out"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed_trains_on_a_shared_gpu(stage):
    """It calls the second rank's device "cuda:1", which is not there."""
    skip_without("deepspeed")
    body = f"""
from workshop.parallel.deepspeed_zero import load_deepspeed
deepspeed = load_deepspeed()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
config = {{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": {stage}}},
          "zero_allow_untested_optimizer": True}}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
assert str(engine.device) == "cuda:0"
losses = []
for _ in range(5):
    loss = (engine(torch.ones(4, 16, device="cuda") * (rank + 1)) - 1).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
out = torch.stack(losses)
dist.all_reduce(out)
engine.destroy()
"""
    losses = run(body)[0]["out"]
    assert losses[-1] < losses[0]


def test_each_rank_has_a_cap_of_its_own():
    limits = launch.Limits(timeout=110, share_gpu=True, device_memory="256MiB")
    with pytest.raises(RankFailed, match="256.00 MiB"):
        launch.torchrun(
            "import torch\ntorch.empty(2**29, dtype=torch.uint8, device='cuda')", 2, limits=limits
        )


def test_without_a_cap_the_gpu_is_divided():
    total = torch.cuda.get_device_properties(0).total_memory
    code = "import torch\nfrom workshop import report\nreport(share=torch.cuda.get_per_process_memory_fraction())"
    share = launch.torchrun(code, 4, limits=SHARED)[3]["share"]
    assert total * share * 4 < total


def test_ranks_that_stay_share_and_heal():
    ranks = Ranks(2, launch.Limits(share_gpu=True))
    try:
        assert "share one GPU" in ranks.summary()
        text = ranks.run(
            "x = torch.ones(1, device=device) * (rank + 1); dist.all_reduce(x); print(float(x))"
        ).text
        assert "3.0" in text
        with pytest.raises(RankFailed):
            ranks.run("1 / 0 if rank == 0 else dist.all_reduce(x)")
        assert "6.0" in ranks.run("dist.all_reduce(x); print(float(x))").text
    finally:
        ranks.stop()
