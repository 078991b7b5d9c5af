"""Faults in the midst of training: FSDP2, DTensor, pipelines, DeepSpeed, checkpoints, loaders.

A library's own threads, hooks and groups stand between the line that breaks and the call that waits.
"""

from __future__ import annotations

from benchmarks.faults.cell import Fault

_MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh(device.type, (2,))
"""
_STAGE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
layer = torch.nn.Linear(8, 8)
stage = PipelineStage(layer, rank, 2, device, input_args=(torch.ones(1, 8),))
loss_of = lambda out, target: (out - target).pow(2).sum()
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
"""

TRAINING = [
    Fault(
        "FSDP2: a gradient hook raises in backward",
        """
        from torch.distributed.fsdp import fully_shard
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        for layer in model: fully_shard(layer)
        fully_shard(model)
        x = torch.ones(2, 8, requires_grad=True)
        def hook(gradient):
            if rank == 1:
                mark("failed"); raise ValueError("bad gradient")
        hidden = model[0](x); hidden.register_hook(hook)
        model[1](hidden).sum().backward()
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 9\n.*bad gradient",
    ),
    Fault(
        "FSDP2: one rank skips a step and waits elsewhere",
        """
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(8, 8))
        if rank == 0: model(torch.ones(2, 8)).sum().backward()
        else: dist.recv(torch.ones(1), 0)
        """,
        r"^time is up after 2 s. rank 0 waits in \w+ at line 4; rank 1 waits in recv at line 5\.\n",
        timeout=2,
    ),
    Fault(
        "DTensor: one rank raises before a redistribution",
        f"""{_MESH}
x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
if rank == 1:
    mark("failed"); raise ValueError("no luck")
x.redistribute(mesh, [Replicate()]).to_local().sum().item()
dist.barrier()
""",
        r"(?s)^rank 1 raised ValueError first, line 8\n.*rank 0: in .*line (9|10);",
    ),
    Fault(
        "DTensor: a shape that does not fit, on all ranks",
        f"""{_MESH}
x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
dist.barrier(); mark("failed")
x @ distribute_tensor(torch.ones(5, 4), mesh, [Replicate()])
""",
        r"(?s)^ranks 0-1 all raised \w+, line 8\n.*(reduction dim|size|shape)",
    ),
    Fault(
        "a pipeline's last stage raises in its loss",
        f"""{_STAGE}
def loss_of(out, target):
    mark("failed"); raise ValueError("no loss today")
schedule._loss_fn = loss_of
if rank == 0: schedule.step(torch.ones(4, 8))
else: schedule.step(target=torch.ones(4, 8))
dist.barrier()
""",
        r"(?s)^rank 1 raised \w+ first, line 9\n.*no loss today",
    ),
    Fault(
        "a pipeline's second stage never comes",
        f"""{_STAGE}
if rank == 0: schedule.step(torch.ones(4, 8))
else: time.sleep(10**6)
""",
        r"^time is up after 2 s. rank 0 (waits in \w+|is) at line 8; rank 1 is at line 9\.\n",
        timeout=2,
    ),
    Fault(
        "DeepSpeed ZeRO-2: one rank raises before backward",
        """
        import deepspeed, importlib
        comm = importlib.import_module("deepspeed.comm.torch")
        comm.build_shm_op = lambda: None  # it would compile for a minute
        model = torch.nn.Linear(8, 8)
        config = {"train_batch_size": 4, "zero_optimization": {"stage": 2}}
        config["zero_allow_untested_optimizer"] = True  # DeepSpeed's own would be compiled, too
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        loss = engine(torch.ones(2, 8, device=engine.device)).sum()
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        engine.backward(loss); engine.step()
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 12\n.*no luck",
    ),
    Fault(
        "a sharded checkpoint that one rank cannot write",
        """
        import shutil, tempfile
        import torch.distributed.checkpoint as dcp
        where = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(where)
        class Bad:
            def __reduce__(self):
                mark("failed"); raise ValueError("not to be written")
        try: dcp.save({f"part_{rank}": Bad() if rank else torch.ones(2)}, checkpoint_id=where[0])
        finally: shutil.rmtree(where[0], ignore_errors=True)
        """,
        r"(?s)rank.* raised \w+, line 9|rank.* raised \w+ first, line (8|9)",
    ),
    Fault(
        "a loader whose workers are spawned, and a rank that raises",
        """
        from torch.utils.data import DataLoader
        if rank == 0: dist.barrier()
        loader = DataLoader(list(range(64)), num_workers=2, multiprocessing_context="spawn")
        for i, batch in enumerate(loader):
            if i == 3:
                mark("failed"); raise ValueError("no luck")
        """,
        r"(?s)^rank 1 raised ValueError first, line 7\n.*rank 0: in barrier, line 3;",
        engines=("ranks",),  # a script needs its main guard for workers by spawn: the next fault
    ),
    Fault(
        "spawned workers of a script with its main guard",
        """
        from torch.utils.data import DataLoader
        def main():
            loader = DataLoader(list(range(64)), num_workers=1, multiprocessing_context="spawn")
            for i, batch in enumerate(loader):
                if i == 3:
                    mark("failed"); raise ValueError("no luck")
        if __name__ == "__main__":
            dist.init_process_group()
            if rank == 1: main()
            dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 7\n.*rank 0: in barrier, line 11;",
        engines=("torchrun",),
        before_init=True,
    ),
    Fault(
        "mp.spawn inside a rank, and its child raises",
        """
        import torch.multiprocessing as mp
        if rank == 1:
            mark("failed"); mp.spawn(int, args=("x",), nprocs=1)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised Process\w+ first, line 4\n.*TypeError",
        engines=("ranks",),
    ),
]
