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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workshop.facts.checks import check_one_line
from workshop.facts.launcher_variables import LAUNCHER_NAMES, LAUNCHER_PREFIXES, OF_THE_JOB, PROXY_NAMES
from workshop.facts.secret_variables import PATTERNS, is_secret_name
from workshop.site.apptainer_command import HIDDEN, NODE_VARIABLES, container_line, hidden_environment
from workshop.site.spec import VARIABLE_NAME, SiteSpec, check_time

_ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
_SIGNAL = re.compile(r"[A-Z0-9]+@\d+")
_EXPORTED = re.compile(r"\bexport\s+([A-Za-z_][A-Za-z0-9_]*)=")
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
    replicas: that many torchruns side by side, of which each may die and come back (torchft), spread over the
        nodes; ``nproc_per_node`` is then the ranks of each. 0: one run of the program.
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
    replicas: int = 0
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
        self._check_replicas()
        if self.gpus_per_node is not None and self.gpus_per_node < 0:
            raise ValueError(f"gpus_per_node {self.gpus_per_node}: zero or more")
        if self.time:
            check_time(self.time)
        if self.array and not _ARRAY.fullmatch(self.array):
            raise ValueError(f"array {self.array!r}: write indices as 0-3, 0,2,5 or 0-15%4")
        if self.signal and not _SIGNAL.fullmatch(self.signal):
            raise ValueError(f"signal {self.signal!r}: write a signal's name and seconds, as USR1@60")
        for name in self.environment:
            if not VARIABLE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable")
        named = {
            "name": self.name,
            "program": self.program,
            "folder": self.folder,
            "directory": self.directory,
        }
        for what, text in (*named.items(), *self.environment.items(), *(("argument", a) for a in self.args)):
            check_one_line(f"the job's {what}", text)

    def _check_replicas(self) -> None:
        if self.replicas < 0 or 0 < self.replicas < self.nnodes:
            raise ValueError(f"{self.replicas} replicas on {self.nnodes} nodes: at least one on each")
        refused = {"--array (and --sweep)": self.array, "--requeue": self.requeue, "--signal": self.signal}
        for flag in (flag for flag, value in refused.items() if self.replicas and value):
            raise ValueError(f"{flag} does not go with --replicas: who comes back learns from a peer")

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


def threads_wanted(site: SiteSpec, job: Job) -> int:
    """``OMP_NUM_THREADS`` of a rank: what the site says, else (0) as many as it has cores."""
    return site.threads or cpus_wanted(site, job) // job.nproc_per_node


def opening_lines(site: SiteSpec) -> list[str]:
    """The site's modules, then the lines of its prologue: what a shell of the site does before all else."""
    lines = ["module purge"] if site.purge else []
    return [*lines, *(f"module load {shlex.quote(module)}" for module in site.modules), *site.prologue]


def exported_by_prologue(site: SiteSpec) -> list[str]:
    """Names that lines of the prologue set by ``export NAME=``: they come along into the container."""
    return list(dict.fromkeys(name for line in site.prologue for name in _EXPORTED.findall(line)))


def port_lines(number: str) -> list[str]:
    """``port``: told by the job's ``number`` (a shell variable), outside the range from which the kernel
    takes ports for connections: one of those may be anybody's at any moment.
    """
    return [
        "# The port comes from the job's number, outside the range from which the kernel takes its own.",
        "low=32768 high=60999",
        "kernels=/proc/sys/net/ipv4/ip_local_port_range",
        '[ ! -r "$kernels" ] || read -r low high < "$kernels"',
        f"if ((low > 12000)); then port=$((10000 + {number} % (low - 10000)))",
        f"elif ((high < 63000)); then port=$((high + 1 + {number} % (65535 - high)))",
        f"else port=$((20000 + {number} % 20000)); fi",
    ]


def export_lines(site: SiteSpec, job: Job) -> list[str]:
    """``export NAME=value`` for every variable of the job, and ``unset`` for proxies of the login node."""
    variables = dict(job.environment)
    if job.max_restarts and not job.replicas:  # torchft finds a replica's ranks in torchrun's store
        variables.setdefault(*_OWN_STORE)
    variables |= hidden_environment(site, variables)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    if "OMP_NUM_THREADS" not in variables:
        lines.append(f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{threads_wanted(site, job)}}}")
    if site.offline and not site.proxy:
        lines.append("unset " + " ".join(PROXY_NAMES))
    return lines


def on_node_lines(site: SiteSpec, job: Job, number: str = "") -> list[str]:
    """Shell variables ``container`` and ``on_node``: what is done on every node before torchrun starts.

    number: the scheduler's variable that counts a job's nodes from 0, the first of which is ``$head``. torch
    compares ``$head`` with the host's name alone; where it is the address of a second card, each node would
    take another for the host of the meeting, and all wait. So each is told whether it is.
    """
    own = {**job.environment, **hidden_environment(site, job.environment)}
    of_the_job = [name for name in OF_THE_JOB if name.startswith(LAUNCHER_PREFIXES)]
    kept = " | ".join([*of_the_job, *dict.fromkeys([*site.keep, *filter(is_secret_name, own)])])
    others = sorted(name for name in LAUNCHER_NAMES if not name.startswith("JPY_"))  # Jupyter is not there
    prefixes = [f"{prefix}*" for prefix in LAUNCHER_PREFIXES]
    return [
        "# On every node, before torchrun: what tells a process its place among srun's or mpirun's is taken",
        "# away, so that no rank believes it, and secrets of the shell that handed the job in. Then the",
        "# command, in the site's container where there is one.",
        f"container={shlex.quote(_container(site, job))}",
        "on_node='",
        *_host_lines(job, number)[:1],
        "    for name in $(compgen -e); do",
        "        case $name in",
        f"            {kept}) ;;",
        f'            {" | ".join(prefixes)}) unset "$name" ;;',
        *[
            f'            {" | ".join(others[at : at + 8])}) unset "$name" ;;'
            for at in range(0, len(others), 8)
        ],
        f'            {" | ".join(PATTERNS)}) unset "$name" ;;',
        "        esac",
        "    done",
        *_host_lines(job, number)[1:],
        *_network_lines(site, job),
        *_kept_lines(site),
        '    eval "exec $0 \\"\\$@\\""\'',
    ]


def _host_lines(job: Job, number: str) -> list[str]:
    """Before the launcher's variables are taken away, and after; torchrun reads its flags from PET_*."""
    if job.replicas and job.nnodes > 1:
        why = "    # The other replicas look for the store of this one under the name of its node."
        return [why, "    export PET_LOCAL_ADDR=$(hostname)"]
    if job.nnodes == 1 or not number:
        return []
    return [f"    is_host=$((${{{number}:-0}} == 0))", "    export PET_RDZV_CONF=is_host=$is_host"]


def _network_lines(site: SiteSpec, job: Job) -> list[str]:
    """gloo takes names, and ``^docker0`` is none: the first network of the node that is not left out."""
    if job.nnodes == 1 or not site.interface.startswith("^") or "GLOO_SOCKET_IFNAME" in job.environment:
        return []
    wildcard = "" if site.interface.startswith("^=") else "*"
    left_out = [f"{name}{wildcard}" for name in site.interface.lstrip("^=").split(",")]
    return [
        "    for link in /sys/class/net/*; do",
        f"        case ${{link##*/}} in lo | {' | '.join(left_out)}) continue ;; esac",
        '        [ "$(cat "$link/operstate")" = up ] || continue',
        "        export GLOO_SOCKET_IFNAME=${link##*/} TP_SOCKET_IFNAME=${link##*/}",
        "        break",
        "    done",
    ]


def _kept_lines(site: SiteSpec) -> list[str]:
    """Secrets that the site lets through reach the container by its runtime's environment."""
    names = [*site.keep, *(name for name in exported_by_prologue(site) if is_secret_name(name))]
    if site.runtime not in HIDDEN or not names:
        return []
    set_it = f'[ -z "${{!name+x}}" ] || export "{HIDDEN[site.runtime]}$name=${{!name}}"'
    return [f"    for name in {' '.join(dict.fromkeys(names))}; do {set_it}; done"]


def _container(site: SiteSpec, job: Job) -> str:
    """The container's line up to the command; variables in it are those of the node that runs it."""
    environment = dict(job.environment)
    if job.max_restarts and not job.replicas:
        environment.setdefault(*_OWN_STORE)
    gloo = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME") if _network_lines(site, job) else ()
    return container_line(
        site,
        folder=job.folder or "/",
        environment=environment,
        gpus=gpus_wanted(site, job) > 0,
        node_variables=(
            *(*NODE_VARIABLES[site.gpu], *OF_THE_JOB, "OMP_NUM_THREADS"),
            *(*gloo, *exported_by_prologue(site)),
            *(["PET_LOCAL_ADDR" if job.replicas else "PET_RDZV_CONF"] if job.nnodes > 1 else []),
        ),
    )


_BIND = """near=({lists}); cpus=${{near[LOCAL_RANK]:-}}
if [ -z "$cpus" ]; then exec "$@"; fi
if ! taskset --cpu-list "$cpus" true 2> /dev/null; then
    echo "rank $RANK is bound to no cores: this job has not those next to its GPU, $cpus" >&2; exec "$@"
fi
if command -v numactl > /dev/null; then exec numactl --physcpubind="$cpus" --localalloc "$@"; fi
exec taskset --cpu-list "$cpus" "$@\""""


def _program_words(site: SiteSpec, job: Job, python: str) -> str:
    """What torchrun runs on every rank; bound to the cores next to its GPU where the site names them."""
    own = shlex.join([*(["--module"] if job.module else []), job.program, *job.args])
    if not site.gpu_cpus or not gpus_wanted(site, job):
        return own
    bind = _BIND.format(lists=" ".join(site.gpu_cpus))
    words = shlex.join([*(["-m"] if job.module else []), job.program, *job.args])
    return f"--no-python bash -c {shlex.quote(bind)} bind {python} {words}"


def python_word(job: Job) -> str:
    """The Python of the ranks, for the shell."""
    return shlex.quote(job.python) if job.python else '"${PYTHON:-python3}"'


def torchrun_lines(
    site: SiteSpec, job: Job, num_nodes: str, run_id: str, endpoint: str = '"$head:$port"'
) -> list[str]:
    """``python -m torch.distributed.run ...``, a word or a flag a line; the first node is ``$head:$port``."""
    python = python_word(job)
    words = [
        f"{python} -m torch.distributed.run",
        f"--nnodes={num_nodes}",
        f"--nproc-per-node={job.nproc_per_node}",
        *([f"--max-restarts={job.max_restarts}"] if job.max_restarts else []),
        f"--rdzv-id={run_id}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        _program_words(site, job, python),
    ]
    return [f"    {word} \\" for word in words[:-1]] + [f"    {words[-1]}"]


def end_lines(site: SiteSpec, job: Job, own: Sequence[str] = ()) -> list[str]:
    """What is done when the script ends: a job with a directory of its own writes there with which code; then
    come the scheduler's ``own`` lines and those of the site's epilogue.
    """
    lines = [""] if job.directory or site.epilogue or own else []
    if job.directory:
        lines += [
            "# How this ended, for those who follow it where the scheduler keeps no accounts.",
            f"record={shlex.quote(job.directory)}/task_$WORKSHOP_JOB_TASK/start_$WORKSHOP_JOB_START",
            'mkdir -p -m 700 "$record"',
        ]
    write = 'echo $? > "$record/exit"'
    if job.replicas:  # each writes its own; before they have begun all end as the script does
        each = " ".join(str(number) for number in range(job.replicas))
        write = f"""code=$?
    if [ -z "${{began:-}}" ]; then
        for number in {each}; do
            record={shlex.quote(job.directory)}/task_$number/start_$WORKSHOP_JOB_START
            mkdir -p -m 700 "$record"
            echo "$code" > "$record/exit"
        done
    fi"""
    if site.epilogue or own:
        body = [*([write] if job.directory else []), "set +eu", *own, *site.epilogue]
        return [*lines, "at_end() {", *(f"    {line}" for line in body), "}", "trap at_end EXIT"]
    return [*lines, f"trap '{write}' EXIT"] if job.directory else lines
