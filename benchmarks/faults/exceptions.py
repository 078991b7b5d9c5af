"""Faults in which a rank raises: in all kinds of calls that the other waits in, and in odd ways."""

from __future__ import annotations

from benchmarks.faults.cell import Fault


def one_raises(what: str, others: str) -> str:
    """Rank 1 raises on line 4, while rank 0 is in a call (line 5) that needs rank 1."""
    return f"""
x = torch.ones(1000)
if rank == 1:
    mark("failed"); raise {what}
{others}
"""


NO_KEYBOARD = r"(?s)^ranks 0-1 all raised RuntimeError, line 3\n.*keyboard"
FIRST = r"^rank 1 raised {} first, line 4\n"

ONE_RAISES = [
    Fault(
        f"one raises, the other in {name}",
        one_raises('ValueError("no luck")', call),
        rf"(?s)^rank 1 raised ValueError first, line 4\n.*no luck.*rank 0: {where}line 5; (freed|ended)",
    )
    for name, call, where in [
        ("barrier", "dist.barrier()", "in barrier, "),
        ("all_reduce", "dist.all_reduce(x)", "in all_reduce, "),
        ("recv", "dist.recv(x, 1)", "in recv, "),
        ("batch_isend_irecv", "dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])[0].wait()", ""),
        ("work.wait()", "dist.all_reduce(x, async_op=True).wait()", ""),
        ("all_gather_object", "dist.all_gather_object([None] * 2, rank)", "in all_gather_object, "),
        ("new_group", "dist.new_group([0, 1])", "in new_group, "),
    ]
]

ODD_EXCEPTIONS = [
    Fault(
        "all raise",
        'dist.barrier(); mark("failed")\nraise KeyError(7)',
        r"^ranks 0-1 all raised KeyError, line 3\n",
    ),
    Fault(
        "one raises before it joins the group",
        """
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.init_process_group()
        """,
        r"(?s)^rank 1 raised ValueError first, line 3\n.*rank 0: in init_process_group, line 4; ended",
        engines=("torchrun",),
        before_init=True,
    ),
    Fault("sys.exit(3)", one_raises("SystemExit(3)", "dist.barrier()"), FIRST.format("SystemExit")),
    Fault(
        "KeyboardInterrupt raised by the cell",
        one_raises("KeyboardInterrupt", "dist.barrier()"),
        FIRST.format("KeyboardInterrupt"),
    ),
    Fault(
        "endless recursion",
        """
        def deeper(n): return deeper(n + 1)
        if rank == 1:
            mark("failed"); deeper(0)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised RecursionError first, line 2\n.*\(the same line, again and again\)",
    ),
    Fault(
        "an exception whose __str__ raises",
        """
        class Bad(Exception):
            def __str__(self): raise RuntimeError("no words")
        if rank == 1:
            mark("failed"); raise Bad
        dist.barrier()
        """,
        r"(?s)^rank 1 raised Bad first, line 5\n.*its message cannot be shown: RuntimeError in __str__",
    ),
    Fault(
        "a DDP backward hook raises on one rank",
        """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        def hook(gradient):
            if rank == 1:
                mark("failed"); raise ValueError("bad gradient")
        model.module.weight.register_hook(hook)
        model(torch.ones(2, 8)).sum().backward()
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n.*line 7\n.*line 5, in hook",
    ),
    Fault(
        "one raises before FSDP2's forward",
        """
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(8, 8))
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        model(torch.ones(2, 8))
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n.*"
        r"rank 0: in \w*(all_gather|allgather|pre_forward)\w*, line 6;",
    ),
    Fault(
        "an all_reduce never awaited, then an exception",
        """
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        FIRST.format("ValueError"),
    ),
    Fault(
        "a report that cannot be pickled",
        """
        from workshop import report
        if rank == 1:
            mark("failed"); report(numbers=(i for i in range(3)))
        dist.barrier()
        """,
        r"(?s)^rank 1 raised TypeError first, line 4\n.*cannot pickle 'generator' object",
    ),
    Fault("input()", 'dist.barrier(); mark("failed")\ninput("your name?")', NO_KEYBOARD),
    Fault("breakpoint()", 'dist.barrier(); mark("failed")\nbreakpoint()', NO_KEYBOARD),
    Fault(
        "out of memory under --device-memory",
        """
        kept = [torch.ones(2**20, device=device) for _ in range(8)]
        if rank == 1:
            mark("failed"); kept += [torch.ones(2**20, device=device) for _ in range(64)]
        dist.barrier()
        """,
        r"(?s)^rank 1 raised OutOfMemoryError first, line 4\n.*ried to allocate.*capacity of 64",
        device_memory="64MiB",
    ),
    Fault(
        "200,000 lines, then an exception",
        """
        for i in range(200_000): print("line", i)
        mark("failed"); raise ValueError("enough")
        """,
        r"(?s)^ranks? [01].* raised ValueError.*, line 3\n",  # the slower rank may still be printing
    ),
    Fault(
        "50 MB on stderr, then an exception",
        """
        for i in range(500): print("x" * 100_000, file=sys.stderr)
        mark("failed"); raise ValueError("enough")
        """,
        r"(?s)^ranks? [01].* raised ValueError.*, line 3\n",
    ),
    Fault(
        "descriptors 1 and 2 closed",
        """
        if rank == 1:
            os.close(1), os.close(2); mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"^rank 1 raised ValueError first, line 3\n",
    ),
    Fault(
        "SIGTERM ignored",
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        FIRST.format("ValueError"),
        changes_signals=True,
    ),
    Fault(
        "a DataLoader with workers, and a rank that raises",
        """
        from torch.utils.data import DataLoader
        if rank == 0: dist.barrier()
        for i, batch in enumerate(DataLoader(list(range(64)), num_workers=2)):
            if i == 3:
                mark("failed"); raise ValueError("no luck")
        """,
        r"(?s)^rank 1 raised ValueError first, line 6\n.*rank 0: in barrier, line 3;",
    ),
    Fault(
        "one leaves the group, the other waits for it",
        """
        if rank == 1:
            mark("failed"); dist.destroy_process_group()
        else:
            dist.barrier()
        """,
        # The first by far; the others where rank 1 is slow to go, and its group's end is quicker.
        r"^rank 0 waits in barrier at line 5; rank 1 "
        r"(has left the cell|is outside the cell's own lines|waits in destroy_process_group at line 3)\.\n",
    ),
]
