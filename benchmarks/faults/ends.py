"""Faults that are no exception: deaths, hangs, the stop button, and cells that end well and leave damage."""

from __future__ import annotations

from benchmarks.faults.cell import Fault

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
                "import torch.utils.data as d; it = iter(d.DataLoader([1] * 64, num_workers=2)); next(it)",
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
        r"^(time is up after 1 s\. )?rank 0 waits in all_reduce at line 2; rank 1 has left the cell\.\n",
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
        r"^time is up after 1 s. ranks? [01]",
        timeout=1,
    ),
    Fault(
        "a loop that catches even KeyboardInterrupt",
        """
        while True:
            try:  # twice, since an interrupt that comes between two turns of one loop would end it
                while True:
                    try: dist.barrier(); 1 / 0
                    except BaseException: pass
            except BaseException: pass
        """,
        r"^time is up after 1 s. ranks? [01]",
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
        # Asleep on the same line: which thread takes the signal is the kernel's choice, and it may come late.
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)\ndist.barrier()",
        r"^time is up after 1 s. rank 0 waits in barrier at line 3; rank 1 is (at line 2\.|outside )",
        timeout=1,
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
        "all ranks leave by os._exit(0)",
        'mark("failed"); os._exit(0)',
        r"ended well",
        engines=("torchrun",),  # as torchrun sees it; in %%ranks it is a rank that dies
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
