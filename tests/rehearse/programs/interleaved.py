"""Two stages a rank, PyTorch's interleaved schedule; shapes are asked for at run time."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
rank, world = dist.get_rank(), dist.get_world_size()
pieces = [nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(2)]
stages = [
    PipelineStage(piece, rank + i * world, 2 * world, torch.device("cpu")) for i, piece in enumerate(pieces)
]
schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=F.mse_loss)
optimizer = torch.optim.AdamW([p for piece in pieces for p in piece.parameters()])
for _ in range(4):
    x = torch.randn(256, 128)
    schedule.step(*((x,) if rank == 0 else ()), target=x if rank == world - 1 else None)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
