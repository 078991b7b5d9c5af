"""The same job for an SGE-like scheduler (Grid Engine, as TSUBAME runs it): what ``qsub`` reads.

Grid Engine differs from Slurm in three ways that matter here. It has no ``srun``: MPI starts one torchrun on
every node. It has no word for "two nodes": a site names its own resource for a whole node, which stands among
the directives of the site with ``{nnodes}`` for the number, as in ``-l node_f={nnodes}``. And it writes the
nodes it gave into a file, ``$PE_HOSTFILE``.

The module that brings ``mpirun`` belongs to the site's modules. Written and checked as text and as bash; no
Grid Engine was at hand to run it.

Sources: Grid Engine, ``qsub(1)``, ``sge_pe(5)``; TSUBAME4.0 User's Guide, "Job scheduling system".
"""

from __future__ import annotations

from workshop.site.job import (
    Job,
    end_lines,
    export_lines,
    gpus_wanted,
    on_node_lines,
    opening_lines,
    port_lines,
    torchrun_lines,
)
from workshop.site.spec import SiteSpec

_HEAD = """
# The torchruns of all nodes meet on the first one. JOB_ID is the job's number.
if [ -n "${PE_HOSTFILE:-}" ]; then head=$(sed -n '1s/ .*//p' "$PE_HOSTFILE"); else head=$(hostname); fi"""

# Grid Engine says "undefined" where Slurm leaves a variable out, and counts an array from 1.
_INDEX = """
case ${SGE_TASK_ID:-undefined} in
    undefined) ;;
    *) export SLURM_ARRAY_TASK_ID=$((SGE_TASK_ID - 1)) ;;
esac
export SLURM_JOB_ID=$JOB_ID SLURM_RESTART_COUNT=${RESTARTED:-0}"""

_NAMES = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID")


def sge_script(site: SiteSpec, job: Job) -> str:
    """The text of the batch script. The job's number and index reach the ranks under Slurm's names.

    Raises ValueError for an array that does not count up from 0, a signal (Grid Engine's are the site's own),
    several nodes where no directive of the site says ``{nnodes}``, or more GPUs than a node has.
    """
    if job.signal:
        raise ValueError(
            f"signal {job.signal}: Grid Engine warns jobs as the queue says (-notify), not by flag"
        )
    if job.nnodes > 1 and not any("{nnodes}" in directive for directive in site.directives):
        raise ValueError(
            f"{job.nnodes} nodes of {site.name}: say how it gives them in [job] directives, for example "
            '["-l node_f={nnodes}"]'
        )
    gpus_wanted(site, job)
    lines = ["#!/bin/bash -l" if site.modules else "#!/bin/bash", *directives(site, job), ""]
    lines += [*opening_lines(site), "set -euo pipefail", *export_lines(site, job), _INDEX]
    lines += end_lines(site, job, "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")
    lines += [_HEAD, *port_lines("JOB_ID"), "", *on_node_lines(site, job), ""]
    if job.nnodes > 1:
        carried = ["PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", *_NAMES, *sorted(job.environment)]
        lines.append(f"mpirun -np {job.nnodes} --map-by ppr:1:node --bind-to none \\")
        lines.append("    " + " ".join(f"-x {name}" for name in carried) + " \\")
    lines.append('    bash -c "$on_node" "$container" \\')
    return "\n".join([*lines, *torchrun_lines(site, job, str(job.nnodes), '"$JOB_ID"')]) + "\n"


def directives(site: SiteSpec, job: Job) -> list[str]:
    """The ``#$`` lines. The site's own come last, so that they decide."""
    time = job.time or site.time
    said = [
        ("-N", job.title),
        ("-A", site.account),
        ("-q", site.partition),
        ("-ar", site.reservation),
        ("-l", f"h_rt={_clock(time)}"),
        ("-t", _tasks(job)),
        ("-r", "y" if job.requeue else "n"),
        ("-wd", job.folder),
        ("-j", "y"),
        ("-o", job.directory),
    ]
    lines = [f"#$ {flag} {value}" for flag, value in said if value]
    if not job.folder:
        lines.append("#$ -cwd")
    return lines + [f"#$ {directive.replace('{nnodes}', str(job.nnodes))}" for directive in site.directives]


def _clock(time: str) -> str:
    """D-HH:MM:SS as hours, minutes and seconds: Grid Engine knows no days."""
    days, _, clock = time.rpartition("-")
    hours, rest = clock.split(":", 1)
    return f"{24 * int(days or 0) + int(hours)}:{rest}"


def _tasks(job: Job) -> str:
    """``0-7`` as ``1-8``; the ranks see 0 to 7."""
    if not job.array:
        return ""
    first, _, last = job.array.partition("-")
    if first != "0" or not last.isdigit():
        raise ValueError(f"array {job.array!r}: for Grid Engine write it as 0-7")
    return f"1-{int(last) + 1}"
