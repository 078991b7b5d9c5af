"""A job as a batch script for Slurm: what ``sbatch`` reads, and what then runs on the first node.

The lines that begin with ``#SBATCH`` are for the scheduler; to bash they are comments. Below them stands an
ordinary shell program. It starts one torchrun a node through ``srun``, and the torchruns meet through
PyTorch's own c10d rendezvous on the job's first node.

Four lines are there because their absence is a well-known way to lose an afternoon:

* ``--ntasks-per-node=1``: tasks are torchruns, not ranks. With one task a rank there are as many torchruns,
  each of them for all ranks of a node, and those for which the rendezvous has no place fail.
* ``srun --cpus-per-task``: since Slurm 22.05 a step does not inherit it, and all ranks share one core.
* the port comes from the job's number: two jobs on one node rarely share it, as they would a fixed one; and
  from outside the range that the kernel hands out, where it could be somebody's already.
* ``--no-requeue`` where nothing else is said: a program that does not resume must not run twice.

Sources: Slurm, ``sbatch(1)``, ``srun(1)``, ``scontrol(1)``; PyTorch, "torchrun (Elastic Launch)".
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from workshop.facts.checks import check_one_line
from workshop.site.job import (
    Job,
    cpus_wanted,
    end_lines,
    export_lines,
    gpus_wanted,
    on_node_lines,
    opening_lines,
    port_lines,
    python_word,
    torchrun_lines,
)
from workshop.site.spec import SiteSpec

_PLACE = """
# Which job this is, told to the ranks by the names that all schedulers share.
export WORKSHOP_JOB=${SLURM_JOB_ID:-}
export WORKSHOP_JOB_TASK=${SLURM_ARRAY_TASK_ID:-0} WORKSHOP_JOB_START=${SLURM_RESTART_COUNT:-0}"""

_HEAD = """
# The torchruns of all nodes meet on the first one, at the address under which Slurm knows it.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
head=$(timeout 20 scontrol show node "$first" --oneliner | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p' || true)
head=${head:-$first}"""

_ASK_AGAIN = """
# Time is nearly up: back into the queue, to go on from the last checkpoint.
trap 'echo "told by {signal}: queued again"; scontrol requeue "$SLURM_JOB_ID"' {signal}"""


_LIGHTHOUSE = """
# The lighthouse, at which the replicas find one another in each step; it ends with this script.
bash -c "$on_node" "$container" \\
    {python} -m {module} "$record" {reach} &
lighthouse=$!
until [ -e "$record/lighthouse" ]; do
    kill -0 "$lighthouse" 2> /dev/null || {{ echo "the lighthouse could not start" >&2; exit 1; }}
    sleep 0.2
done
began=1

# A task is a replica: a torchrun of its own, with its own record. One that gives up takes no other along. It
# starts again as a whole: in a store that stayed, its ranks would find the addresses of those that died.
replica='
    export WORKSHOP_JOB_TASK=$SLURM_PROCID
    record=$1/task_$SLURM_PROCID/start_$WORKSHOP_JOB_START
    mkdir -p -m 700 "$record"
    shift
    for attempt in $(seq 0 {max_restarts}); do
        code=0; bash -c "$0" "$@" || code=$?
        if [ "$code" = 0 ]; then break; fi
    done
    echo "$code" > "$record/exit"; exit "$code"'"""
_END_OF_REPLICAS = ['[ -z "${lighthouse:-}" ] || kill "$lighthouse"']
LIGHTHOUSE_MODULE = "workshop.launch.child.lighthouse"

_AS_IT_IS = re.compile(r"[A-Za-z0-9_@%+=:,./~^-]+")
LONGEST_VALUE = 1000  # bytes; Slurm refuses names and paths of 1024


def sbatch_line(flag: str, value: object) -> str:
    """``#SBATCH --flag=value`` as sbatch reads it back, whatever letters the value has.

    To sbatch a blank outside quotes ends a value and ``#`` begins a comment; a backslash escapes within
    quotes and without, but not a blank (all seen with 22.05).

    Raises ValueError for more than one line, control characters, what is no UTF-8, and what is too long.
    """
    text = str(value)
    check_one_line(f"--{flag}", text)
    if len(text.encode()) > LONGEST_VALUE:
        raise ValueError(f"--{flag} {text[:60]!r}... has more than {LONGEST_VALUE} bytes: Slurm refuses it")
    if not _AS_IT_IS.fullmatch(text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"#SBATCH --{flag}={text}"


def output_path(folder: str, name: str) -> str:
    """A file for ``--output``, in which sbatch fills in ``%j`` and the like: only ``name`` may have them.

    Raises ValueError for a folder with a backslash, by which sbatch fills in nothing at all.
    """
    if "\\" in folder:
        raise ValueError(f"the folder {folder!r} has a backslash, which Slurm takes for a sign in --output")
    return f"{folder.replace('%', '%%')}/{name}"


def slurm_script(site: SiteSpec, job: Job) -> str:
    """The text of the batch script.

    Raises ValueError where the site's nodes have fewer GPUs than the job wants, or cannot run its container.
    """
    login = site.modules or site.purge or site.export == "none"
    lines = ["#!/bin/bash -l" if login else "#!/bin/bash", *directives(site, job), ""]
    if not job.directory:
        lines.append(f"# Submit it from the folder of {job.program}: sbatch {job.title}.sbatch")
    lines += [*opening_lines(site), "set -euo pipefail", *export_lines(site, job)]
    if site.export == "none":
        lines.append(
            "export SLURM_EXPORT_ENV=ALL  # sbatch's NONE is for this script, not for what srun starts"
        )
    lines += [
        *([_PLACE] if job.directory else []),
        *end_lines(site, job, _END_OF_REPLICAS * bool(job.replicas)),
    ]
    lines += [""] if job.replicas else [_HEAD, *port_lines("SLURM_JOB_ID"), ""]
    lines += on_node_lines(site, job, "SLURM_NODEID")
    if job.signal and job.requeue:
        lines.append(_ASK_AGAIN.format(signal=job.signal.partition("@")[0]))
    lines += replicas_lines(site, job) if job.replicas else ["", *srun_lines(site, job)]
    return "\n".join(lines) + "\n"


def directives(site: SiteSpec, job: Job) -> list[str]:
    """The ``#SBATCH`` lines. Flags of the site come last, so that they decide."""
    gpus = gpus_wanted(site, job)
    flags = [
        ("job-name", job.title),
        ("account", site.account),
        ("partition", site.partition),
        ("reservation", site.reservation),
        ("nodes", job.nnodes),
        *([("ntasks", job.replicas)] if job.replicas else [("ntasks-per-node", 1)]),
        ("cpus-per-task", cpus_wanted(site, job)),
        ("gpus-per-task" if job.replicas else "gpus-per-node", gpus or ""),
        ("time", job.time or site.time),
        ("array", job.array),
        ("signal", f"B:{job.signal}" if job.signal else ""),
        ("chdir", job.folder),
        ("output", _output(job)),
        ("export", "NONE" if site.export == "none" else ""),
        ("open-mode", "append" if job.requeue else ""),
    ]
    lines = [sbatch_line(flag, value) for flag, value in flags if value != ""]
    lines.append("#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue")
    return lines + [f"#SBATCH {directive}" for directive in site.directives]


def _output(job: Job) -> str:
    """%x: the job's name, %j: its number, %A and %a: an array's number and index."""
    name = "%x-%A_%a.out" if job.array else "%x-%j.out"
    return output_path(job.directory, name) if job.directory else name


def srun_lines(site: SiteSpec, job: Job) -> list[str]:
    """The line that starts everything. A shell that waits for it in ``wait`` can still hear a signal."""
    bind = f" --cpu-bind={site.cpu_bind}" if site.cpu_bind else ""
    lines = [
        f'srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK"{bind} \\',
        '    bash -c "$on_node" "$container" \\',
        *torchrun_lines(site, job, '"$SLURM_JOB_NUM_NODES"', '"$SLURM_JOB_ID"'),
    ]
    if job.signal:
        lines[-1] += " &"
        lines += ["wait $! || wait $!  # the first returns when a signal comes"]
    return lines


def replicas_lines(site: SiteSpec, job: Job) -> list[str]:
    """The lighthouse, and an srun whose tasks are replicas.

    Raises ValueError for a script that stands alone: replicas find the lighthouse in the job's directory.
    """
    if not job.directory:
        raise ValueError("--replicas need a job of %%sbatch; by hand it is examples/replicas/replicas.sbatch")
    bind = f" --cpu-bind={site.cpu_bind}" if site.cpu_bind else ""
    each = output_path(job.directory, f"{job.title}-%j_%t.out")
    return [
        _LIGHTHOUSE.format(
            python=python_word(job),
            module=LIGHTHOUSE_MODULE,
            reach="loopback" if job.nnodes == 1 else "nodes",
            max_restarts=job.max_restarts,
        ),
        f'srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK"{bind} \\',
        f"    --output={shlex.quote(each)} \\",
        f'    bash -c "$replica" "$on_node" {shlex.quote(job.directory)} "$container" \\',
        *torchrun_lines(site, replace(job, max_restarts=0), "1", '"$SLURM_JOB_ID"', "localhost:0"),
    ]
