"""The flags of a job: one list for ``%%sbatch`` and ``workshop sbatch``, named as sbatch and torchrun do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("-N", "--nnodes", "--nodes"),
        {"type": int, "default": 1, "metavar": "K", "help": "nodes (default: 1)"},
    ),
    (
        ("-n", "--nproc-per-node"),
        {"type": int, "metavar": "N", "help": "ranks on each node (default: a node's GPUs, else 2)"},
    ),
    (("-t", "--time"), {"default": "", "metavar": "HH:MM:SS", "help": "time limit (default: the site's)"}),
    (("-J", "--job-name"), {"default": "", "metavar": "NAME", "help": "name in the queue"}),
    (("-a", "--array"), {"default": "", "metavar": "0-3", "help": "run it once for each of these indices"}),
    (
        ("--sweep",),
        {"metavar": "NAME=V,V,V", "help": "run it once for each value of this variable: lr=1e-3,3e-3"},
    ),
    (("--requeue",), {"action": "store_true", "help": "after a preemption it may start again, and resumes"}),
    (
        ("--signal",),
        {"default": "", "metavar": "USR1@60", "help": "with --requeue: again, 60 s before the end"},
    ),
    (
        ("--gpus-per-node",),
        {"type": int, "metavar": "G", "help": "0: ranks on CPU (default: a GPU each, where there are)"},
    ),
    (
        ("--max-restarts",),
        {"type": int, "default": 0, "metavar": "K", "help": "times all ranks may start again"},
    ),
    (
        ("--replicas",),
        {
            "type": int,
            "metavar": "R",
            "help": "R torchruns of -n ranks (default: a node's GPUs, else 1) side by side on the nodes, of "
            "which each may die and come back (torchft)",
        },
    ),
    (("--site",), {"metavar": "FILE", "help": "the site's file (default: the one in force)"}),
    (("--detach",), {"action": "store_true", "help": "leave the job, also when the notebook ends"}),
    (("--dry-run",), {"action": "store_true", "help": "show the batch script, hand nothing in"}),
    (
        ("--test-only",),
        {"action": "store_true", "help": "ask sbatch whether it would take it, hand nothing in"},
    ),
)


def add_job_flags(add: Callable[..., Any]) -> None:
    """Call ``add`` with each flag as ``argparse``'s ``add_argument`` takes it."""
    for names, options in _FLAGS:
        add(*names, **options)
