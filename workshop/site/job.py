"""A job: a program, how many nodes and ranks it wants, and for how long; whichever scheduler runs it.

What all schedulers have in common stands here too: the variables a node exports, the variables it takes away,
and torchrun's line. torchrun is started **once a node** (not once a rank: it starts the ranks itself), and
the torchruns of all nodes meet at one address, that of the job's first node:

    scheduler -> batch script, on the first node
              -> one torchrun on every node  (srun, mpirun)
              -> the ranks of that node      (torchrun)

Source: PyTorch, "torchrun (Elastic Launch)".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from workshop.facts.launcher_variables import LAUNCHER_NAMES, LAUNCHER_PREFIXES, OF_THE_JOB, PROXY_NAMES
from workshop.site.apptainer_command import NODE_VARIABLES, container_line
from workshop.site.spec import SiteSpec, check_time

_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_SIGNAL = re.compile(r"[A-Z0-9]+@\d+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# gloo's restarted groups must not meet the addresses of the dead attempt in a store that stayed
_OWN_STORE = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


@dataclass(frozen=True)
class Job:
    """One job, or an array of them.

    program, args: what every rank runs; with ``module``, the program is a module's name, as ``python -m``.
    nnodes, nproc_per_node: nodes, and ranks on each of them, as torchrun names them.
    time: HH:MM:SS, or "" for the site's. array: indices as sbatch writes them: ``0-3``, ``0,2``, ``0-8%2``.
    requeue: may the scheduler start it again after a preemption or the loss of a node?
    signal: ``USR1@60``: 60 s before time is up the batch script is told; with ``requeue`` it asks to be
        queued again. gpus_per_node: None takes one for each rank where the site's nodes have GPUs.
    max_restarts: how often torchrun may start all ranks again within the job.
    directory: where the job's own record goes ("" for a script that stands alone). folder: where it starts.

    Raises ValueError for values that no job can have.
    """

    name: str
    program: str
    args: tuple[str, ...] = ()
    module: bool = False
    nnodes: int = 1
    nproc_per_node: int = 1
    time: str = ""
    array: str = ""
    requeue: bool = False
    signal: str = ""
    gpus_per_node: int | None = None
    max_restarts: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    folder: str = ""
    directory: str = ""

    def __post_init__(self) -> None:
        if self.nproc_per_node < 1 or self.nnodes < 1:
            raise ValueError(
                f"{self.nproc_per_node} ranks on {self.nnodes} nodes: both must be 1 or more, as in -N 2 -n 4"
            )
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts {self.max_restarts}: zero or more")
        if self.gpus_per_node is not None and self.gpus_per_node < 0:
            raise ValueError(f"gpus_per_node {self.gpus_per_node}: zero or more")
        if self.time:
            check_time(self.time)
        if self.array and not _ARRAY.fullmatch(self.array):
            raise ValueError(f"array {self.array!r}: write indices as 0-3, 0,2,5 or 0-15%4")
        if self.signal and not _SIGNAL.fullmatch(self.signal):
            raise ValueError(f"signal {self.signal!r}: write a signal's name and seconds, as USR1@60")
        for name in self.environment:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable")
        for text in (self.name, self.program, self.folder, self.directory, *self.args):
            if "\n" in text:
                raise ValueError(f"{text!r} has more than one line")

    @property
    def title(self) -> str:
        """The name as a scheduler takes it: letters, digits, point and dash."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name) or "job"


def gpus_wanted(site: SiteSpec, job: Job) -> int:
    """GPUs a node for this job: what it says, else one for each rank where the site's nodes have any.

    Raises ValueError where a node has fewer.
    """
    wanted = job.gpus_per_node
    if wanted is None:
        wanted = job.nproc_per_node if site.gpus else 0
    if wanted > site.gpus > 0:
        raise ValueError(
            f"{wanted} GPUs a node are wanted and a node of {site.name} has {site.gpus}: "
            f"-n {site.gpus} and more nodes, or --gpus-per-node 0 for ranks on CPU"
        )
    return wanted


def cpus_wanted(site: SiteSpec, job: Job) -> int:
    """Cores a node: each rank's fair share where the rank has a GPU (loaders need them), else one a rank."""
    gpus = gpus_wanted(site, job)
    share = site.cpus // site.gpus if gpus and site.gpus else 1
    return job.nproc_per_node * max(1, share)


def export_lines(site: SiteSpec, job: Job) -> list[str]:
    """``export NAME=value`` for every variable of the job, and ``unset`` for proxies of the login node."""
    said = dict(job.environment)
    if job.max_restarts:
        said.setdefault(*_OWN_STORE)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(said.items())]
    if "OMP_NUM_THREADS" not in said:
        lines.append("export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}")
    if site.offline and not site.proxy:
        lines.append("unset " + " ".join(PROXY_NAMES))
    return lines


def on_node_lines(site: SiteSpec, job: Job) -> list[str]:
    """Shell variables ``container`` and ``on_node``: what is done on every node before torchrun starts."""
    kept = " | ".join(OF_THE_JOB)
    others = sorted(name for name in LAUNCHER_NAMES if not name.startswith("JPY_"))  # Jupyter is not there
    prefixes = [f"{prefix}*" for prefix in LAUNCHER_PREFIXES]
    return [
        "# On every node, before torchrun: what tells a process its place among srun's or mpirun's is taken",
        "# away, so that no rank believes it. Then the command, in the site's container where there is one.",
        f"container={shlex.quote(_container(site, job))}",
        "on_node='",
        "    for name in $(compgen -e); do",
        "        case $name in",
        f"            {kept}) ;;",
        f'            {" | ".join(prefixes)}) unset "$name" ;;',
        *[
            f'            {" | ".join(others[at : at + 8])}) unset "$name" ;;'
            for at in range(0, len(others), 8)
        ],
        "        esac",
        "    done",
        '    eval "exec $0 \\"\\$@\\""\'',
    ]


def _container(site: SiteSpec, job: Job) -> str:
    """The container's line up to the command; variables in it are those of the node that runs it."""
    environment = dict(job.environment)
    if job.max_restarts:
        environment.setdefault(*_OWN_STORE)
    return container_line(
        site,
        folder=job.folder or "/",
        environment=environment,
        gpus=gpus_wanted(site, job) > 0,
        node_variables=(*NODE_VARIABLES, *OF_THE_JOB, "OMP_NUM_THREADS"),
    )


def torchrun_lines(job: Job, num_nodes: str, run_id: str) -> list[str]:
    """``python -m torch.distributed.run ...``, a word or a flag a line; the first node is ``$head:$port``."""
    python = shlex.quote(job.python) if job.python else '"${PYTHON:-python3}"'
    words = [
        f"{python} -m torch.distributed.run",
        f"--nnodes={num_nodes}",
        f"--nproc-per-node={job.nproc_per_node}",
        *([f"--max-restarts={job.max_restarts}"] if job.max_restarts else []),
        f"--rdzv-id={run_id}",
        "--rdzv-backend=c10d",
        '--rdzv-endpoint="$head:$port"',
        shlex.join([*(["--module"] if job.module else []), job.program, *job.args]),
    ]
    return [f"    {word} \\" for word in words[:-1]] + [f"    {words[-1]}"]


def exit_record(job: Job, index: str, start: str) -> list[str]:
    """A job with a directory of its own writes there that it has ended, and with which code."""
    if not job.directory:
        return []
    return [
        "",
        "# How this ended, for those who follow it where the scheduler keeps no accounts.",
        f"record={shlex.quote(job.directory)}/task_${{{index}:-0}}/start_${{{start}:-0}}",
        'mkdir -p -m 700 "$record"',
        "trap 'echo $? > \"$record/exit\"' EXIT",
    ]
