"""Every collective through the host, beside plain gloo. Tensors of the CPU stand for those of a GPU: they are
copied aside and back. What this cannot prove is CUDA itself: streams, and that a copy waits for a kernel."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from workshop import report
from workshop.launch.child import staged_group

staged_group.use(frozenset({"cpu"}))
dist.init_process_group("nccl", device_id=torch.device("cpu"))
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.distributed_c10d._get_default_group()
assert isinstance(group, staged_group.StagedGroup)
seen: dict[str, object] = {"backend": dist.get_backend()}
mine = torch.arange(4.0) + 10 * rank


def kept(name, value):
    seen[name] = value.tolist() if isinstance(value, torch.Tensor) else value


x = mine.clone()
dist.all_reduce(x)
kept("all_reduce", x)
x = mine.clone()
dist.all_reduce(x, op=dist.ReduceOp.AVG)
kept("mean", x)
x = mine.to(torch.bfloat16)
dist.all_reduce(x, async_op=True).wait()
kept("bf16", x.float())
x = mine.clone()
dist.broadcast(x, src=1)
kept("broadcast", x)
x = mine.clone()
dist.reduce(x, dst=0)
kept("reduce", x if rank == 0 else None)
parts = [torch.empty(4) for _ in range(size)]
dist.all_gather(parts, mine)
kept("all_gather", torch.stack(parts))
whole = torch.empty(size * 4)
dist.all_gather_into_tensor(whole, mine)
kept("all_gather_into_tensor", whole)
parts = [torch.empty(4) for _ in range(size)] if rank == 0 else None
dist.gather(mine, parts, dst=0)
kept("gather", torch.stack(parts) if parts else None)
x = torch.empty(2)
dist.scatter(x, list(mine.split(2)) if rank == 0 else None, src=0)
kept("scatter", x)
x = torch.empty(2)
dist.reduce_scatter(x, list(mine.split(2)))
kept("reduce_scatter", x)
x = torch.empty(2)
dist.reduce_scatter_tensor(x, mine, op=dist.ReduceOp.AVG)
kept("reduce_scatter_tensor", x)
x = torch.empty(4)
dist.all_to_all_single(x, mine)
kept("all_to_all_single", x)
uneven = [torch.empty(1 + rank), torch.empty(1 + rank)]
dist.all_to_all(uneven, [mine[:1], mine[1:3]])
kept("all_to_all", torch.cat(uneven))
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
kept("objects", objects)

# messages: both send first, then receive, more than a socket's buffer holds
big, came = torch.full((2**20,), float(rank)), torch.empty(2**20)
ops = [dist.P2POp(dist.isend, big, 1 - rank), dist.P2POp(dist.irecv, came, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
kept("exchanged", [came[0].item(), came[-1].item()])
if rank == 0:
    dist.send(mine, 1)
else:
    dist.recv(came[:4], 0)
    kept("received", came[:4])

# sub-groups, meshes, functional collectives, DTensor
pair = dist.new_group([0, 1], backend="nccl")
x = mine.clone()
dist.all_reduce(x, group=pair)
kept("sub-group", x)
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
kept("functional", torch.stack([all_reduce(mine, "sum", mesh), all_gather_tensor(mine[:2], 0, mesh)]))
kept("functional reduce_scatter", reduce_scatter_tensor(mine, "sum", 0, mesh))
spread = distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])
kept("DTensor", (spread * 2).redistribute(placements=[Replicate()]).to_local())

# DDP and FSDP2: equal to one process on both ranks' rows
torch.manual_seed(rank)
rows = torch.arange(8.0).view(4, 2) / 8
for name in ("ddp", "fsdp"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    alone = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    alone.load_state_dict(model.state_dict())
    alone(rows).pow(2).mean().backward()
    wrapped = DistributedDataParallel(model) if name == "ddp" else fully_shard(model, mesh=mesh)
    wrapped(rows[2 * rank : 2 * rank + 2]).pow(2).mean().backward()
    gradients = [
        p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in wrapped.parameters()
    ]
    kept(
        name,
        max(float((a - b.grad).abs().max()) for a, b in zip(gradients, alone.parameters(), strict=True))
        < 1e-6,
    )
dist.barrier()
kept("sequence", group._get_sequence_number_for_group() >= 0)
report(seen=seen, rank=int(os.environ["RANK"]))
del wrapped, model
dist.destroy_process_group()
