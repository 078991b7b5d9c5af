"""The program of one fresh rank: a child of the fork server that becomes `python cell.py`.

The fork server has imported torch already, so a rank begins in milliseconds. Everything else is
made to be as in a new interpreter: environment, directory, module search path, arguments, an empty
``__main__``, random states of its own, and exit handlers that run.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import dataclasses
import gc
import importlib.util
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

from workshop.launch import messages, rank_folder, stack_dumps
from workshop.launch.child import failure_record, rank_io
from workshop.launch.child.descriptors import keep_reserve
from workshop.launch.child.held_groups import hold_groups_of_ddp
from workshop.launch.device import SHARED_GPUS
from workshop.launch.processes import ProcessId, die_with_parent
from workshop.launch.report import REPORT_FILE
from workshop.launch.request import unpickled
from workshop.process.quiet import without_loading_noise
from workshop.site.cores import GPU_CPUS, bind_to

# The others get this long to reach the place where they wait for the rank that failed, so that
# "where it was" is where it waits, and so that the same failure reads the same each time.
GRACE_SECONDS = 0.2
# What the allocators of ranks that share a GPU may hold together; the rest is for their contexts, some
# hundred megabytes each, which no allocator counts.
OF_A_SHARED_GPU = 0.9

_AGENT_NAMES = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_NAME "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCH_NCCL_ASYNC_ERROR_HANDLING "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE".split()
)


def run(launch: messages.Launch) -> None:
    """Entry point that the elastic agent calls in each rank."""
    die_with_parent()
    os.setpgid(0, 0)  # a program that signals its process group ends itself, and not the engine
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the engine ignores it
    adopt_environment(launch.env)
    rank = int(os.environ["RANK"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    rank_dir = rank_folder.of_rank(rank_folder.of_attempt(Path(launch.run_dir), int(attempt)), rank)
    rank_dir.mkdir(parents=True, exist_ok=True)
    settle_in(rank_dir)
    code = run_program(launch.program, rank_dir)
    if code == 0:
        (rank_dir / rank_folder.DONE).touch()
        hang_up()
        return  # the agent takes the return value, and waits for the others
    os._exit(code)


def settle_in(rank_dir: Path) -> None:
    """From here on this process's output, stacks and reports go to ``rank_dir``, under its process id."""
    (rank_dir / rank_folder.PROCESS).write_text(json.dumps(dataclasses.astuple(_myself())))
    rank_io.capture(rank_dir)
    rank_io.dump_stacks_on_signal(rank_dir)
    os.environ[REPORT_FILE] = str(rank_dir / rank_folder.REPORT)


def adopt_environment(env: dict[str, str]) -> None:
    """Replace the fork server's variables by the launch's, keeping what the agent set for this rank."""
    ours = {name: value for name, value in os.environ.items() if name in _AGENT_NAMES}
    os.environ.clear()
    os.environ.update(env)
    os.environ.update(ours)


def run_program(program: messages.RankProgram, rank_dir: Path) -> int:
    """Run the program to its end, exit handlers included; its exit code. A failure leaves its record."""
    try:
        _execute(program)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return _at_exit()
        return _failed(leaving, program.file, rank_dir)
    except BaseException as error:  # noqa: BLE001 whatever ends the program is told in the notebook
        return _failed(error, program.file, rank_dir)
    return _at_exit()


def _execute(program: messages.RankProgram) -> None:
    os.chdir(program.cwd)
    sys.path[:] = program.sys_path
    sys.argv = [program.file, *program.args]
    fresh_process_state()
    hold_groups_of_ddp()
    set_up_device(program.device, program.device_memory)
    gc.freeze()  # torch and its like: no garbage of the program's
    gc.enable()
    builtins.input = rank_io.no_keyboard("input()")
    sys.breakpointhook = rank_io.no_keyboard("breakpoint()")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=program.file, __builtins__=builtins)
    if program.module:
        main.__dict__.update(_as_module(program.module))
    if program.passed:
        main.__dict__.update(unpickled(Path(program.passed)))
    sys.modules["__main__"] = main
    code = compile(Path(program.file).read_bytes(), program.file, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _as_module(name: str) -> dict[str, Any]:
    """What ``python -m NAME`` puts into ``__main__``, for relative imports; the packages are imported."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name}")
    return {"__spec__": spec, "__package__": spec.parent, "__loader__": spec.loader}


def fresh_process_state() -> None:
    """What a child of the fork server has and a new interpreter has not.

    Its start method is "forkserver" (a DataLoader's workers would import torch again, seconds each), and its
    random generators are copies: all ranks would draw the same numbers, where those of torchrun draw others.
    """
    import numpy
    import torch

    keep_reserve()
    without_loading_noise()
    multiprocessing.set_start_method(None, force=True)
    random.seed()
    numpy.random.seed()
    torch.seed()


def set_up_device(device: str, device_memory: int | None) -> None:
    """Threads, the rank's own GPU and the cores next to it where it has one, and the cap on memory."""
    import torch

    shared = int(os.environ.get(SHARED_GPUS, "0"))
    number = int(os.environ["LOCAL_RANK"])
    number = number % shared if shared else number
    if device == "cuda":  # before any thread is made: threads inherit the cores
        near = os.environ.get(GPU_CPUS, "").split()[number : number + 1]
        if near and (why := bind_to(near[0])):
            print(f"this rank is {why}", file=sys.stderr)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if device == "cpu":
        wait_for_a_turn()
    if device == "cuda":
        from workshop.launch.child.deepspeed_on_leased_gpus import know_the_leased_gpus

        torch.cuda.set_device(number)
        know_the_leased_gpus()
    if device == "cuda" and shared:
        from workshop.launch.child import staged_group

        staged_group.use()
        ranks = -(-int(os.environ["LOCAL_WORLD_SIZE"]) // shared)
        torch.cuda.set_per_process_memory_fraction(OF_A_SHARED_GPU / ranks, number)
    if device_memory:
        from workshop.launch.child.device_cap import cap_device_memory

        cap_device_memory(device_memory, device)


def wait_for_a_turn() -> None:
    """Have this thread, and those that it starts, wait for a core, not take it from whoever computes.

    While a rank's main thread writes to another rank, it holds their connection. Gloo's own thread wants it
    as soon as something has arrived, and looks again and again (gloo/transport/tcp/pair.cc:
    `Pair::handleEvents` tries the lock, and returns). Where ranks are as many as cores, what arrives wakes
    that thread on the core of the very thread that writes, and a slice of time is spent on looking. Threads
    of ``SCHED_BATCH`` take no core by waking up (sched(7)): an all-reduce of 8 MB between two ranks on two
    cores takes 0.6 of the time, one of 1 MB less than half (`benchmarks/batch_ranks.py`).
    Ranks on GPUs stay as they are: there the main thread launches kernels, and NCCL does not work like this.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # where a sandbox forbids it, ranks are slower, not wrong
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _failed(error: BaseException, program: str, rank_dir: Path) -> int:
    failure_record.write(error, program, rank_dir)
    rank_io.settle()
    time.sleep(GRACE_SECONDS)
    ask_the_others(rank_dir)
    code = getattr(error, "code", 1)
    return code if isinstance(code, int) and 0 < code < 256 else 1


def ask_the_others(rank_dir: Path, patience: float = 0.3) -> None:
    """Before this rank goes and takes its connections along: have the others write down where they are.

    Only those of this node: a process number of another node is somebody else here.
    """
    at_work: dict[Path, stack_dumps.Signalled] = {}
    first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
    here = range(first, first + int(os.environ["LOCAL_WORLD_SIZE"]))
    for other in (rank_folder.of_rank(rank_dir.parent, rank) for rank in here):
        ended = any((other / name).exists() for name in (rank_folder.DONE, rank_folder.FAILURE))
        if not ended and (other / rank_folder.STACKS).exists():
            at_work[other / rank_folder.STACKS] = process_of(other)
    stack_dumps.request_dumps(at_work, patience)


def process_of(rank_dir: Path) -> ProcessId:
    """The process that settled in there."""
    return ProcessId(*json.loads((rank_dir / rank_folder.PROCESS).read_text()))


def _myself() -> ProcessId:
    process = ProcessId.of(os.getpid())
    assert process is not None
    return process


def hang_up() -> None:
    """End every TCP connection, as the end of a process does.

    The agent keeps a rank that has finished until all have. But others may wait for it: in a collective
    that it never enters, or in the destructor of a group. Its silence would hang them; a closed
    connection tells them.
    """
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if connection.family in (socket.AF_INET, socket.AF_INET6) and not listens:
                connection.shutdown(socket.SHUT_RDWR)


def _at_exit() -> int:
    """Exit handlers run in a new interpreter; a forked child skips them, so we run them."""
    atexit._run_exitfuncs()
    rank_io.settle()
    return 0
