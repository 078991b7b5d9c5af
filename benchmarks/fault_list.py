"""The faults of the failure lab: cells that break in one way each, and what must be said about it.

Every cell runs on two ranks, in ``%%ranks`` and under ``%%torchrun``. Its first line (the magic's own in a
notebook) is written by the lab: it imports torch and ``dist``, joins the group, and sets ``rank`` and
``mark``. A cell calls ``mark("failed")`` right before it breaks: that is where the clock starts. Where a
time limit or the stop button ends the cell, the clock starts there.

What the cells keep is checked by the lab, not by them: a variable set before the fault, the process
numbers of the ranks, and a sum over all ranks afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

BOTH = ("ranks", "torchrun")


@dataclass(frozen=True)
class Fault:
    """One way to break a cell.

    says: regular expression that the error's message must match.
    costs_restart: True where a rank dies or cannot be reached any more; else the same ranks must go on.
    timeout: the cell's time limit in seconds, for cells that hang.
    from_outside: what happens to the cell once every rank has called ``mark("ready")``.
    before_init: the cell itself decides when it joins the group.
    """

    name: str
    cell: str
    says: str
    engines: tuple[str, ...] = BOTH
    costs_restart: bool = False
    timeout: float | None = None
    device_memory: str | None = None
    from_outside: str = ""
    before_init: bool = False

    @property
    def source(self) -> str:
        """The cell's own lines; the first of them is line 2."""
        return dedent(self.cell).strip("\n") + "\n"


def one_raises(what: str, others: str) -> str:
    """Rank 1 raises on line 4, while rank 0 is in a call (line 5) that needs rank 1."""
    return f"""
x = torch.ones(1000)
if rank == 1:
    mark("failed"); raise {what}
{others}
"""


FIRST = r"^rank 1 raised {} first, line 4\n"
RANK_0_IN = r"(?s)^rank 1 raised ValueError first, line 4\n.*no luck.*rank 0: {}line 5; (freed|ended)"

ONE_RAISES = [
    Fault(f"one raises, the other in {name}", one_raises('ValueError("no luck")', call), RANK_0_IN.format(where))
    for name, call, where in [
        ("barrier", "dist.barrier()", "in barrier, "),
        ("all_reduce", "dist.all_reduce(x)", "in all_reduce, "),
        ("recv", "dist.recv(x, 1)", "in recv, "),
        ("batch_isend_irecv", "[w.wait() for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1)])]", ""),
        ("work.wait()", "dist.all_reduce(x, async_op=True).wait()", ""),
        ("all_gather_object", "dist.all_gather_object([None] * 2, rank)", "in all_gather_object, "),
        ("new_group", "dist.new_group([0, 1])", "in new_group, "),
    ]
]  # fmt: skip

ODD_EXCEPTIONS = [
    Fault("all raise", 'mark("failed")\nraise KeyError(7)', r"^ranks 0-1 all raised KeyError, line 3\n"),
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
        r"(?s)^rank 1 raised ValueError first, line 5\n.*rank 0: in \w*(all_gather|allgather)\w*, line 6;",
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
    Fault("input()", 'mark("failed")\ninput("your name?")', r"(?s)^ranks 0-1 all raised RuntimeError, line 3\n.*keyboard"),
    Fault("breakpoint()", 'mark("failed")\nbreakpoint()', r"(?s)^ranks 0-1 all raised RuntimeError, line 3\n.*keyboard"),
    Fault(
        "out of memory under --device-memory",
        """
        kept = [torch.ones(2**20, device=device) for _ in range(8)]
        if rank == 1:
            mark("failed"); kept += [torch.ones(2**20, device=device) for _ in range(64)]
        dist.barrier()
        """,
        r"(?s)^rank 1 raised OutOfMemoryError first, line 4\n.*out of memory.*[Tt]ried to allocate.*capacity of 64",
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
    ),
    Fault(
        "a DataLoader with workers, and a rank that raises",
        """
        from torch.utils.data import DataLoader
        for i, batch in enumerate(DataLoader(list(range(64)), num_workers=2)):
            if rank == 1 and i == 3:
                mark("failed"); raise ValueError("no luck")
        dist.barrier()
        """,
        r"(?s)^rank 1 raised ValueError first, line 5\n.*line 5",
    ),
    Fault(
        "one leaves the group, the other waits for it",
        """
        if rank == 1:
            mark("failed"); dist.destroy_process_group()
        else:
            dist.barrier()
        """,
        r"(?s)^rank 0 raised \w+ first, line 5\n.*(connection|Connection)",
    ),
]  # fmt: skip

DEATHS = [
    Fault(f"rank 1 dies: {name}", one_dies, rf"(?s)^rank 1 died first.*{word}", costs_restart=True)
    for name, one_dies, word in [
        (name, f"{begin}\nif rank == 1:\n    mark('failed'); {call}\ndist.barrier()", word)
        for name, begin, call, word in [
            ("os._exit(3)", "", "os._exit(3)", "exit code 3"),
            ("SIGKILL", "", "os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL.*out of memory"),
            ("SIGSEGV", "import ctypes", "ctypes.string_at(0)", "SIGSEGV.*compiled code"),
            ("SIGABRT", "", "os.abort()", "SIGABRT.*compiled code gave up"),
            (
                "os._exit(3) with two subprocesses running",
                "import subprocess; [subprocess.Popen(['sleep', '1000']) for _ in range(2)]",
                "os._exit(3)",
                "exit code 3",
            ),
            (
                "SIGKILL with a DataLoader's workers running",
                "from torch.utils.data import DataLoader; "
                "batches = iter(DataLoader(list(range(64)), num_workers=2)); next(batches)",
                "os.kill(os.getpid(), signal.SIGKILL)",
                "SIGKILL",
            ),
        ]
    ]
] + [
    Fault(
        "all_reduce of different shapes",  # gloo ends the rank that receives more than it has room for
        'x = torch.ones(3 if rank else 400_000)\nmark("failed")\ndist.all_reduce(x)',
        r"(?s)^rank \d died first, line 4\n.*SIGABRT",
        costs_restart=True,
    ),
]

HANGS = [
    Fault(
        "mismatch: all_reduce and recv",
        """
        x = torch.ones(1000)
        if rank == 0: dist.all_reduce(x)
        else: dist.recv(x, 0)
        """,
        r"^time is up after 1 s. rank 0 waits in all_reduce at line 3; rank 1 waits in recv at line 4\.\n",
        timeout=1,
    ),
    Fault(
        "mismatch: one rank leaves the cell early",
        "if rank == 0: dist.all_reduce(torch.ones(1000))",
        r"^time is up after 1 s. rank 0 waits in all_reduce at line 2; rank 1 has left the cell\.\n",
        timeout=1,
    ),
    Fault(
        "mismatch in a sub-group",
        """
        pair = dist.new_group([0, 1])
        if rank == 0: dist.all_reduce(torch.ones(1000), group=pair)
        else: dist.barrier()
        """,
        r"^time is up after 1 s. rank 0 waits in all_reduce at line 3; rank 1 waits in barrier at line 4\.\n",
        timeout=1,
    ),
    Fault(
        "an endless Python loop",
        "if rank == 1:\n    while True: pass\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 4; rank 1 is at line 3\.\n",
        timeout=1,
    ),
    Fault(
        "time.sleep for ever",
        "if rank == 1: time.sleep(10**6)\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 3; rank 1 is at line 2\.\n",
        timeout=1,
    ),
    Fault(
        "an exception in a thread that the cell waits for",
        """
        import queue, threading
        answers = queue.Queue()
        threading.Thread(target=lambda: answers.put(1 / 0)).start()
        answers.get()
        """,
        r"(?s)^time is up after 1 s. ranks 0-1 are at line 5.*prints: .*ZeroDivisionError",
        timeout=1,
    ),
    Fault(
        "a loop that catches every Exception and goes on",
        """
        while True:
            try: dist.barrier(); 1 / 0
            except Exception: pass
        """,
        r"^time is up after 1 s. ranks 0-1 ",
        timeout=1,
    ),
    Fault(
        "a loop that catches even KeyboardInterrupt",
        """
        while True:
            try: dist.barrier(); 1 / 0
            except BaseException: pass
        """,
        r"^time is up after 1 s. ranks 0-1 ",
        timeout=1,
        costs_restart=True,
    ),
    Fault(
        "a regular expression that backtracks for ever",
        "import re\nif rank == 1: re.match('(a+)+$', 'a' * 60 + 'b')\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 4; rank 1 is at line 3\.\n",
        timeout=1,
    ),
    Fault(
        "compiled code that never lets the interpreter go",
        "import itertools\nif rank == 1: sum(itertools.repeat(1))\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 4; rank 1 is at line 3\.\n",
        timeout=1,
        costs_restart=True,
    ),
    Fault(
        "SIGSTOP",
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 3; rank 1 is outside the cell's own lines\.\n",
        timeout=1,
        costs_restart=True,
    ),
]

INTERRUPTS = [
    Fault(
        "the stop button while the ranks compute",
        'mark("ready")\nwhile True: torch.ones(64, 64) @ torch.ones(64, 64)',
        r"ranks",
        from_outside="stop button",
    ),
    Fault(
        "the stop button while the ranks sit in a collective",
        'mark("ready")\nif rank == 0: dist.all_reduce(torch.ones(10))\nelse: dist.recv(torch.ones(10), 0)',
        r"ranks",
        from_outside="stop button",
    ),
    Fault(
        "the stop button twice",
        'mark("ready")\nif rank == 0: dist.all_reduce(torch.ones(10))\nelse: dist.recv(torch.ones(10), 0)',
        r"ranks|KeyboardInterrupt",
        from_outside="stop button twice",
    ),
    Fault(
        "the supervisor killed with SIGKILL",
        'mark("ready")\ntime.sleep(1000)',
        r"launch engine (stopped|is gone)",
        from_outside="supervisor killed",
        costs_restart=True,
    ),
]

# Not failures of the cell itself: it ends well, and what it has done must not hurt the next one.
QUIET = [
    Fault(
        "the cell destroys the group",
        'mark("failed")\ndist.destroy_process_group()',
        r"ended well",
    ),
    Fault(
        "the cell leaves two subprocesses behind",
        "import subprocess\n[subprocess.Popen(['sleep', '1000']) for _ in range(2)]\nmark('failed')",
        r"ended well",
        engines=("torchrun",),  # in %%ranks they belong to the rank, like a variable, and end with it
    ),
    Fault(
        "a fork that does not leave the cell",
        'mark("failed")\nif os.fork() == 0: raise ValueError("in the child")',
        r"ended well",
        engines=("ranks",),
    ),
    Fault(
        "a rank removes the directory of its own logs",
        """
        import shutil
        mark("failed"); shutil.rmtree(os.path.dirname(os.environ["WORKSHOP_REPORT_FILE"]))
        """,
        r"ended well",
        engines=("ranks",),
        costs_restart=True,
    ),
]

FAULTS = [*ONE_RAISES, *ODD_EXCEPTIONS, *DEATHS, *HANGS, *INTERRUPTS, *QUIET]
