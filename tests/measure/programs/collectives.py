"""One call of every collective, inside `measure`; rank 0 reports the rows."""

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh

from workshop import report
from workshop.measure.session import measure

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("pp", "tp"))
x, pair = torch.ones(100), [torch.ones(100) for _ in range(world)]
with measure(memory=False) as measured:
    dist.all_reduce(x)
    dist.all_reduce(x.double())
    dist.broadcast(x, 0)
    dist.all_gather(pair, x)
    dist.all_gather_into_tensor(torch.empty(100 * world), x)
    dist.reduce_scatter_tensor(torch.empty(50), x)
    dist.all_to_all_single(torch.empty(100), x)
    dist.reduce(x, 0)
    dist.gather(x, pair if rank == 0 else None, 0)
    dist.barrier()
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    all_reduce(x, "sum", mesh["tp"]).sum()
if rank == 0:
    report(rows=measured.to_dict()["traffic"])
dist.destroy_process_group()
