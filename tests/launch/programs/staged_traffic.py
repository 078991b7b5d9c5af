"""What `measure` counts of every kind of call: the same through the host (STAGED=1) as over plain gloo."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.launch.child import staged_group
from workshop.measure import measure

if os.environ.get("STAGED"):
    staged_group.use(frozenset({"cpu"}))
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
pair = dist.new_group([0, 1])
mine, rows = torch.ones(4), {}


def calls():
    parts = [torch.empty(4) for _ in range(size)]
    dist.all_reduce(mine, async_op=True).wait()
    dist.all_reduce(mine, group=pair)
    dist.broadcast(mine, src=0)
    dist.reduce(mine, dst=0)
    dist.all_gather(parts, mine)
    dist.all_gather_into_tensor(torch.empty(4 * size), mine)
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    dist.scatter(torch.empty(4), parts if rank == 0 else None, src=0)
    dist.reduce_scatter_tensor(torch.empty(2), mine)
    dist.reduce_scatter(torch.empty(2), list(mine.split(2)))
    dist.all_to_all_single(torch.empty(4), mine)
    came = torch.empty(4)
    ops = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, came, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    all_reduce(mine, "sum", mesh).sum().item()
    all_gather_tensor(mine, 0, mesh).sum().item()


def step(wrap):
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)))
    return lambda: model(torch.ones(2, 8)).sum().backward()


for name, run in {
    "calls": calls,
    "ddp": step(DistributedDataParallel),
    "fsdp": step(lambda model: fully_shard(model, mesh=mesh)),
}.items():
    with measure(memory=False) as measured:
        run()
    rows[name] = [
        [row.name, row.axis, row.count, row.payload_bytes, row.wire_bytes] for row in measured.traffic
    ]
report(rows=rows, backend=dist.get_backend())
dist.destroy_process_group()
