"""Faults of groups and of what a rank holds: many ranks, sub-groups, a ring, descriptors, signals, memory."""

from __future__ import annotations

from benchmarks.faults.cell import Fault
from benchmarks.faults.exceptions import FIRST, one_raises

GROUPS = [
    Fault(
        "rank 0 dies: SIGKILL",
        "if rank == 0:\n    mark('failed'); os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()",
        r"(?s)^rank 0 died first.*SIGKILL",
        costs_restart=True,
    ),
    Fault(
        "eight ranks, the last raises",
        """
        if rank == 7:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 7 raised ValueError first, line 3\n.*in barrier, line 4;",
        world_size=8,
    ),
    Fault(
        "a sub-group waits for a rank that raised in another",
        """
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        inner = [dist.new_group([0]), dist.new_group([1]), dist.new_group([2]), dist.new_group([3])]
        dist.all_reduce(torch.ones(4), group=inner[rank])
        if rank == 3:
            mark("failed"); raise ValueError("no luck")
        dist.all_reduce(torch.ones(4), group=pairs[rank // 2])
        dist.barrier()
        """,
        r"(?s)^rank 3 raised ValueError first, line 6\n.*rank 2: in all_reduce, line 7;",
        world_size=4,
    ),
    Fault(
        "a mesh of meshes: two ranks wait in different rows",
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("outer", "inner"))
        if rank in (0, 3): dist.all_reduce(torch.ones(4), group=mesh["inner"].get_group())
        else: dist.all_reduce(torch.ones(4), group=mesh["outer"].get_group())
        """,
        r"^time is up after 2 s. ranks 0,3 wait in all_reduce at line 4; ranks 1-2 wait in all_reduce at",
        timeout=2,
        world_size=4,
    ),
    Fault(
        "a ring of blocking sends of 64 MB",
        """
        x = torch.ones(16 * 2**20)
        dist.send(x, (rank + 1) % 2)
        dist.recv(x, (rank - 1) % 2)
        """,
        r"^time is up after 2 s. ranks 0-1 wait in send at line 3; all are in the same call",
        timeout=2,
    ),
    Fault(
        "only one rank makes a new group",
        "if rank == 0: dist.new_group([0, 1])\nelse: dist.barrier()",
        r"^time is up after 2 s. rank 0 waits in new_group at line 2; rank 1 waits in barrier at line 3\.\n",
        timeout=2,
    ),
    Fault(
        "a group whose own time limit runs out",
        """
        from datetime import timedelta
        brief = dist.new_group([0, 1], timeout=timedelta(seconds=1))
        if rank == 0:
            mark("failed"); dist.all_reduce(torch.ones(4), group=brief)
        else: dist.barrier()
        """,
        r"(?s)^rank 0 raised \w+ first, line 5\n.*[Tt]imed? ?out",
    ),
    Fault(
        "objects of which one cannot be unpickled",
        """
        class Odd:
            def __reduce__(self): return (int, ("not a number",))
        objects = [Odd() if rank == 0 else None]
        mark("failed"); dist.broadcast_object_list(objects, src=0)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n",
    ),
    Fault("sys.exit(0) on one rank", one_raises("SystemExit(0)", "dist.barrier()"), r"rank 1"),
    Fault("MemoryError", one_raises("MemoryError()", "dist.barrier()"), FIRST.format("MemoryError")),
    Fault(
        "an exception that is none: asyncio.CancelledError",
        "import asyncio\n" + one_raises("asyncio.CancelledError", "dist.barrier()").strip("\n"),
        r"^rank 1 raised CancelledError first, line 5\n",
    ),
]

HOLDINGS = [
    Fault(
        "all descriptors used up",
        """
        kept = []
        if rank == 1:
            mark("failed")
            while True: kept.append(open("/dev/null"))  # given back by the next run
        dist.barrier()
        """,
        r"(?s)^rank 1 raised OSError first, line 5\n.*Too many open files",
    ),
    Fault(
        "the environment emptied",
        """
        kept = []; before = dict(os.environ); os.environ.clear()  # the fault above left files open
        try:
            dist.barrier(); mark("failed"); raise ValueError("no luck")
        finally: os.environ.update(before)
        """,
        r"^ranks 0-1 all raised ValueError, line 4\n",
    ),
    Fault(
        "a current folder that is gone",
        """
        import tempfile
        gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n.*rank 0: in barrier, line 6;",
    ),
    Fault(
        "stdout and stderr set to None",
        """
        sys.stdout = sys.stderr = None
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 4\n",
    ),
    Fault(
        "an alarm's handler raises inside a collective",
        """
        def ring(number, frame): raise TimeoutError("too long")
        signal.signal(signal.SIGALRM, ring)
        if rank == 1:
            mark("failed"); signal.setitimer(signal.ITIMER_REAL, 0.2); time.sleep(10)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised TimeoutError first, line 2\n",
        changes_signals=True,
    ),
    Fault(
        "a destructor that raises while the cell fails",
        """
        class Loud:
            def __del__(self): raise RuntimeError("from __del__")
        if rank == 1:
            loud = Loud(); mark("failed"); del loud; raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n",
    ),
    Fault(
        "an exception group",
        one_raises('ExceptionGroup("both", [ValueError(1), KeyError(2)])', "dist.barrier()"),
        FIRST.format("ExceptionGroup"),
    ),
    Fault(
        "a rank signals its process group",
        """
        if rank == 1:
            mark("failed"); os.killpg(0, signal.SIGTERM); time.sleep(10)
        dist.barrier()
        """,
        r"(?s)^rank 1 died first, line 3\n.*SIGTERM.*rank 0: .*; ended",
        costs_restart=True,
    ),
    Fault(
        "a rank interrupts its process group",
        """
        if rank == 1:
            mark("failed"); os.killpg(0, signal.SIGINT); time.sleep(10)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised KeyboardInterrupt first, line 3\n.*rank 0: in barrier, line 4;",
    ),
    Fault(
        "one rank raises, the other does not heed SIGTERM",
        """
        if rank == 1:
            time.sleep(0.5); mark("failed"); raise ValueError("no luck")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
        """,
        r"(?s)^rank 1 raised ValueError first, line 3\n.*rank 0: .*line 5;",
        changes_signals=True,
    ),
    Fault(
        "an interrupt from outside reaches one rank",
        """
        import threading
        if rank == 1:
            threading.Timer(0.3, lambda: (mark("failed"), os.kill(os.getpid(), signal.SIGINT))).start()
            time.sleep(100)
        dist.barrier()
        """,
        r"(?s)^rank 1 raised KeyboardInterrupt first, line 5\n.*rank 0: in barrier, line 6;",
    ),
    Fault(
        "200 MB reported back, then an exception",
        """
        from workshop import report
        report(big=torch.ones(25 * 2**20))
        if rank == 1:
            mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n",
    ),
    Fault(
        "a thread computes on while the cell fails",
        """
        import threading
        stop = threading.Event()
        def busy():
            while not stop.is_set(): torch.ones(64, 64) @ torch.ones(64, 64)
        threading.Thread(target=busy, daemon=True).start()
        try:
            if rank == 1:
                mark("failed"); raise ValueError("no luck")
            dist.barrier()
        finally: stop.set()
        """,
        r"(?s)^rank 1 raised ValueError first, line 9\n",
    ),
]
