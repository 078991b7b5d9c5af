"""One rank of a job: torchrun starts it on a node; it runs the program and writes down what it did.

    python -m torch.distributed.run ... --module workshop.launch.child.job_rank DIRECTORY

DIRECTORY is the job's, on a file system that every node and the notebook see. Each start of the job (a
requeue is a new start), each attempt within it (torchrun's restarts) and each rank has its own folder::

    task_0/start_0/attempt_0/rank_0/   log  report.data  failure.json  stacks  done

A task is an element of an array, or a replica (``--replicas``).

The program itself is plain: under torchrun alone it would do the same, but for one variable. torchrun counts
restarts on each node by itself: only the node whose rank failed counts one. Here all ranks of an attempt
agree on its number (`claim_attempt`), and TORCHELASTIC_RESTART_COUNT is that number on every node.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from workshop.launch import rank_folder
from workshop.launch.child import failure_record, rank_script
from workshop.launch.child.lighthouse import ADDRESS
from workshop.launch.child.torchft_on_loopback import hold_to_loopback
from workshop.launch.messages import JobProgram, RankProgram, read_file
from workshop.launch.processes import die_with_parent
from workshop.site.owners import check_folder_itself


def main() -> None:
    """Run the program of the job in ``sys.argv[1]`` as the rank that torchrun's variables say."""
    die_with_parent()  # a scheduler may end the script and torchrun alone; ranks are sessions of their own
    gc.disable()  # until the program begins: what importing torch leaves behind is no garbage
    directory = Path(sys.argv[1])
    check_folder_itself(directory, "the job's directory")
    of_job: JobProgram = read_file(JobProgram, directory / rank_folder.JOB_PROGRAM)
    task = int(os.environ["WORKSHOP_JOB_TASK"])
    rank_dir = _rank_dir(directory, task)
    rank_dir.mkdir(parents=True, exist_ok=True)
    failure_record.CLOCK = time.time  # nodes share no other; their clocks agree to milliseconds
    rank_script.settle_in(rank_dir)
    if of_job.replicas:
        _become_replica(directory, task, of_job)
    files = directory / f"task_{task}" / "files"
    files.mkdir(exist_ok=True)
    os.environ["WORKSHOP_JOB_FILES"] = str(files)
    code = rank_script.run_program(_program(directory, of_job, task), rank_dir)
    if code == 0:
        (rank_dir / rank_folder.DONE).touch()
    os._exit(code)


def _become_replica(directory: Path, task: int, of_job: JobProgram) -> None:
    """What torchft's own launcher would set. On one node its servers listen on loopback alone."""
    start = f"start_{os.environ['WORKSHOP_JOB_START']}"
    os.environ["TORCHFT_LIGHTHOUSE"] = (directory / "task_0" / start / ADDRESS).read_text()
    os.environ["REPLICA_GROUP_ID"], os.environ["NUM_REPLICA_GROUPS"] = str(task), str(of_job.replicas)
    if of_job.one_node:
        hold_to_loopback()


def _rank_dir(directory: Path, task: int) -> Path:
    """This rank's folder; TORCHELASTIC_RESTART_COUNT becomes the number that all nodes agree on."""
    start_dir = directory / f"task_{task}" / f"start_{os.environ['WORKSHOP_JOB_START']}"
    start_dir.mkdir(parents=True, exist_ok=True)
    meeting, rank = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", int(os.environ["RANK"])
    attempt = claim_attempt(start_dir, meeting, rank)
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    return rank_folder.of_rank(rank_folder.of_attempt(start_dir, attempt), rank)


def claim_attempt(start_dir: Path, meeting: str, rank: int) -> int:
    """Which attempt of this start is it? The same number for all ranks that met at one place.

    The ranks of an attempt share the address of their store, and each attempt has a new one. The first of
    them to come links a file with that address to the next free number, which nobody else can then do; the
    others find their address there. torchrun begins an attempt only when all ranks of the last have ended,
    on every node: so the numbers are in order.

    Args:
        start_dir: the folder of this start, on a file system that all nodes share.
        meeting: HOST:PORT of the ranks' store.
        rank: of this process. No rank is started twice in an attempt: where its folder is there already, two
            attempts have had the same address, and the next number is meant.

    Returns:
        0 for the first attempt.
    """
    claim = start_dir / f".claim-{socket.gethostname()}-{os.getpid()}"
    claim.write_text(meeting)
    try:
        for number in itertools.count():
            place = start_dir / f"round_{number}"
            with contextlib.suppress(FileExistsError):
                os.link(claim, place)
            rank_dir = rank_folder.of_rank(rank_folder.of_attempt(start_dir, number), rank)
            if place.read_text() == meeting and not rank_dir.exists():
                return number
    finally:
        claim.unlink()
    raise AssertionError("itertools.count does not end")


def _program(directory: Path, of_job: JobProgram, task: int) -> RankProgram:
    """What the notebook has written down, and what only the node knows: its search path, its device, the
    values of this element of an array.
    """
    passed = directory / (f"passed_{task}.pkl" if of_job.sweep else rank_folder.PASSED)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return replace(
        of_job.program,
        sys_path=(*of_job.program.sys_path, *[path for path in sys.path if path]),
        passed=str(passed) if passed.exists() else None,
        device="cuda" if _gpu_for_each_rank() else "cpu",
    )


def _gpu_for_each_rank() -> bool:
    import torch

    return torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])


if __name__ == "__main__":
    main()
