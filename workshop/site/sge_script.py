"""A job as a batch script for Grid Engine: what ``qsub`` reads, and what then runs on the first node.

The lines that begin with ``#$`` are for the scheduler, wherever they stand: unlike Slurm, ``qsub`` reads to
the end of the file. So no value may bring such a line along. What differs from Slurm beside that:

* There is no word for "two nodes". A site names its parallel environment (``-pe node {nnodes}``) or its own
  resource (TSUBAME: ``-l node_f={nnodes}``) among its directives; ``{gpus}`` and ``{cpus}`` are a node's.
* There is no ``srun``. The nodes stand in ``$PE_HOSTFILE``; ``qrsh -inherit NODE`` runs a program on one of
  them, inside the job. It joins its words as ssh does, and passes no variables: the program goes in by
  standard input.
* All elements of an array share one ``JOB_ID``; the port and the rendezvous need ``SGE_TASK_ID`` as well.
* The shell is the queue's unless ``-S`` says it, and paths in directives know no quotes that hold: the
  script goes to its folder, and opens its log, by itself.
* A script that ends with 99 is put back into the queue.
* When the time is up (``h_rt``) everything is killed without a warning. So `timeout` ends each node's
  torchrun some seconds before; the ranks write down where they were, and the script ends with 124.

Sources: Grid Engine, ``qsub(1)``, ``qrsh(1)``, ``sge_pe(5)``. What was looked up of TSUBAME4's own
dialect, and what was not, stands in ``examples/sites/tsubame4.toml``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from workshop.site.job import (
    Job,
    cpus_wanted,
    end_lines,
    export_lines,
    gpus_wanted,
    on_node_lines,
    opening_lines,
    port_lines,
    torchrun_lines,
)
from workshop.site.spec import SiteSpec, seconds_of

_PLACE = """
# Which job this is, told to the ranks by the names that all schedulers share. An array counts from 1 here.
export WORKSHOP_JOB=$JOB_ID WORKSHOP_JOB_TASK=0 WORKSHOP_JOB_START=${RESTARTED:-0}
case ${SGE_TASK_ID:-undefined} in
    undefined) ;;
    *) WORKSHOP_JOB_TASK=$((SGE_TASK_ID - 1)) ;;
esac"""

# RESTARTED only says whether this is the first start; the folders count.
_START = """
WORKSHOP_JOB_START=0
while [ -d "$directory/task_$WORKSHOP_JOB_TASK/start_$WORKSHOP_JOB_START" ]; do
    WORKSHOP_JOB_START=$((WORKSHOP_JOB_START + 1))
done"""

_HOSTS = """
# The torchruns of all nodes meet on the first one, which runs this script.
hosts=("$(hostname)")
if [ -n "${{PE_HOSTFILE:-}}" ]; then mapfile -t hosts < <(awk '!seen[$1]++ {{ print $1 }}' "$PE_HOSTFILE"); fi
if [ ${{#hosts[@]}} -ne {nnodes} ]; then
    echo "asked for {nnodes} nodes, was given ${{#hosts[@]}}: ${{hosts[*]}} ([job] directives)" >&2
    exit 1
fi
head=${{hosts[0]}} folder=$PWD deadline=$(($(date +%s) + {seconds}))"""

_PROGRAM = """
program=$(declare -p WORKSHOP_JOB WORKSHOP_JOB_TASK WORKSHOP_JOB_START
          declare -p head port folder deadline container on_node
          declare -f on_each_node
          echo on_each_node)
for host in "${{hosts[@]:1}}"; do
    {node_shell} "$host" /bin/bash -s <<< "$program" &
done"""

# bash hears a signal only in `wait`, so even the only node's torchrun is waited for there.
_WAIT = """on_each_node &

# One that fails has the others ended: by their peers, or ten seconds later with this script.
code=0
for _ in "${hosts[@]}"; do wait -n || { code=$?; break; }; done
if [ $code -ne 0 ]; then
    for _ in {1..20}; do if [ -n "$(jobs -pr)" ]; then sleep 0.5; fi; done
fi
exit $code"""

_AGAIN = """
# Time is nearly up: back into the queue (99), to go on from the last checkpoint.
trap 'echo "told by {signal}: queued again"; exit 99' {signal}
{{ sleep {seconds}; kill -s {signal} $$; }} &
timer=$!
disown"""


def sge_script(site: SiteSpec, job: Job) -> str:
    """The text of the batch script.

    Raises ValueError for replicas, an array that does not count up from 0, a signal later than the job's
    time, several nodes where no directive of the site says ``{nnodes}``, or more GPUs than a node has.
    """
    if job.replicas:
        raise ValueError(
            f"--replicas are started by srun: {site.name} has Grid Engine, and no job of replicas"
        )
    if job.nnodes > 1 and not any("{nnodes}" in directive for directive in site.directives):
        raise ValueError(
            f"{job.nnodes} nodes of {site.name}: say how it gives them in [job] directives, for example "
            '["-l node_f={nnodes}"] or ["-pe mpi {nnodes}"]'
        )
    lines = ["#!/bin/bash", *directives(site, job)]
    if not job.directory:
        submit = shlex.join(["qsub", *submit_flags(site), f"{job.title}.qsub"])
        lines += ["", f"# Submit it from the folder of {job.program}: {submit}"]
    lines += [*_log(job), "set -euo pipefail", *([f"cd {shlex.quote(job.folder)}"] if job.folder else [])]
    lines += [_PLACE, *([_START] if job.directory else [])]
    lines += end_lines(site, job, ["kill $timer 2> /dev/null"] if job.signal else [])
    lines += [
        _hosts(site, job),
        *port_lines("(7 * JOB_ID + WORKSHOP_JOB_TASK)"),
        "",
        *on_node_lines(site, job),
    ]
    lines += ["", *_on_each_node(site, job), *_again(site, job)]
    if job.nnodes > 1:
        lines.append(_PROGRAM.format(node_shell=site.node_shell or "qrsh -inherit"))
    lines.append(_WAIT if job.nnodes > 1 or job.signal else "on_each_node")
    return "\n".join(lines) + "\n"


def submit_flags(site: SiteSpec) -> list[str]:
    """What stands on qsub's command line: the account, where the site's ``account_flag`` wants it there."""
    return [site.account_flag, site.account] if site.account_flag and site.account else []


def directives(site: SiteSpec, job: Job) -> list[str]:
    """The ``#$`` lines. The site's own come last, so that they decide."""
    options = [
        ("-S", "/bin/bash"),
        ("-N", f"job-{job.title}" if job.title[0].isdigit() else job.title),
        ("-A", "" if site.account_flag else site.account),
        ("-q", site.partition),
        ("-ar", site.reservation),
        ("-l", f"h_rt={clock(job.time or site.time)}"),
        *_array(job),
        ("-r", "y" if job.requeue else "n"),
        ("-j", "y"),
        ("-o", "/dev/null" if job.directory else ""),
    ]
    lines = [f"#$ {flag} {one_word(flag, value)}" for flag, value in options if value]
    if not job.folder:
        lines.append("#$ -cwd")
    counts = {"nnodes": job.nnodes, "gpus": gpus_wanted(site, job), "cpus": cpus_wanted(site, job)}
    return [*lines, *(f"#$ {filled(directive, counts)}" for directive in site.directives)]


def filled(directive: str, counts: Mapping[str, object]) -> str:
    """A directive with ``{nnodes}`` and the like filled in."""
    for name, count in counts.items():
        directive = directive.replace(f"{{{name}}}", str(count))
    return directive


def one_word(flag: str, value: str) -> str:
    """A value that is one word to qsub. Raises ValueError for one that would not be."""
    if not re.fullmatch(r"[A-Za-z0-9_.,:/@=+-]+", value):
        raise ValueError(
            f"{flag} {value!r}: a directive of Grid Engine takes no blanks, quotes, # or $ in a value"
        )
    return value


def clock(time: str) -> str:
    """D-HH:MM:SS as hours, minutes and seconds: Grid Engine knows no days."""
    days, _, rest = time.rpartition("-")
    hours, rest = rest.split(":", 1)
    return f"{24 * int(days or 0) + int(hours)}:{rest}"


def _array(job: Job) -> list[tuple[str, str]]:
    """``0-6:2%3`` as ``-t 1-7:2 -tc 3``; the ranks see 0, 2, 4, 6."""
    if not job.array:
        return []
    parts = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?(?:%(\d+))?", job.array)
    if parts is None:
        raise ValueError(f"array {job.array!r}: Grid Engine takes one range, as 0-7, 0-6:2 or 0-15%4")
    first, last, step, at_once = parts.groups()
    tasks = f"{int(first) + 1}-{int(last or first) + 1}:{step or 1}"
    return [("-t", tasks), *([("-tc", at_once)] if at_once else [])]


def _log(job: Job) -> list[str]:
    """The log of a job with a directory. A requeued job goes on in it."""
    if not job.directory:
        return []
    task = "_$((SGE_TASK_ID - 1))" if job.array else ""
    return [
        f"directory={shlex.quote(job.directory)}",
        f'exec >> "$directory/{job.title}-$JOB_ID{task}.out" 2>&1',
    ]


def _hosts(site: SiteSpec, job: Job) -> str:
    """Ten seconds are kept for the end, or of a short job a quarter."""
    limit = seconds_of(job.time or site.time)
    return _HOSTS.format(nnodes=job.nnodes, seconds=limit - min(10, limit // 4))


def _on_each_node(site: SiteSpec, job: Job) -> list[str]:
    """The function that every node runs: its software, its variables, its torchrun."""
    lines = ["on_each_node() {", "    set +eu"]
    if site.modules or site.purge:
        lines += ["    command -v module > /dev/null || . /etc/profile"]
    lines += [f"    {line}" for line in opening_lines(site)]
    lines += ["    set -euo pipefail", '    cd "$folder"']
    lines += [f"    {line}" for line in export_lines(site, job)]
    lines += ["    export WORKSHOP_JOB WORKSHOP_JOB_TASK WORKSHOP_JOB_START"]
    lines.append("    timeout --foreground --kill-after=5 $((deadline - $(date +%s))) \\")
    lines.append('        bash -c "$on_node" "$container" \\')
    run_id = '"$WORKSHOP_JOB.$WORKSHOP_JOB_TASK"'
    return [*lines, *(f"    {line}" for line in torchrun_lines(site, job, str(job.nnodes), run_id)), "}"]


def _again(site: SiteSpec, job: Job) -> list[str]:
    """The clock that tells the script when its time is nearly up: Grid Engine's own differ by queue."""
    if not job.signal:
        return []
    if not job.requeue:
        raise ValueError(f"signal {job.signal} is what a requeue begins with: add --requeue, or leave it out")
    name, _, before = job.signal.partition("@")
    limit = seconds_of(job.time or site.time)
    if int(before) >= limit:
        raise ValueError(f"signal {job.signal}: the job has {limit} s in all; choose fewer seconds")
    return [_AGAIN.format(signal=name, seconds=limit - int(before))]
