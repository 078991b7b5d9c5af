"""A job's directory: what its nodes read, and what its ranks leave. Written here, read in `jobs.record`.

It lies under the site's ``jobs`` path, which every node sees, and only its user can open it::

    20261122-071500-ddp-3fa2/
        job.json       number, name, size, since when: how the job is found again
        cell.py        the program (a script stays where it is)
        program.json   the program's place, arguments and search path
        passed.pkl     values of the notebook; passed_0.pkl ... with a sweep
        job.sbatch     the batch script (Grid Engine: job.qsub); ddp-12.out: what it printed
        cancelled      there once we have ended it
        task_0/        of an array, and of replicas, 0, 1, ...; of any other job 0
            files/     the program's own, kept through requeues: $WORKSHOP_JOB_FILES
            start_0/   a requeue makes start_1
                exit      the batch script's exit code; of replicas each torchrun's
                lighthouse  of replicas, in the first: where they find one another
                round_0   where the ranks of attempt_0 met, by which all nodes count alike
                attempt_0/rank_0/log, report.data, failure.json ...
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop.launch import rank_folder
from workshop.launch.jobs.record import Record, indices, write_record
from workshop.launch.jobs.scheduler import Scheduler, scheduler_of
from workshop.launch.messages import JobProgram, RankProgram, write_file
from workshop.launch.request import Cell, Script, cell_source, check_syntax, pickled
from workshop.launch.session import EngineError
from workshop.site.current import python_of, site_environment
from workshop.site.job import Job, gpus_wanted
from workshop.site.owners import ours
from workshop.site.spec import SiteSpec

RANK_MODULE = "workshop.launch.child.job_rank"


def prepare(
    program: str | Cell | Script,
    site: SiteSpec,
    job: Job,
    variables: Mapping[str, Any] | None = None,
    sweep: tuple[str, Sequence[Any]] | None = None,
) -> tuple[Path, Record]:
    """A new directory with all that the job needs, its batch script included.

    Raises ValueError for a program that is no Python or a value that cannot be passed, EngineError where
    nothing can be written.
    """
    source = None if isinstance(program, Script) else _cell_text(program)
    values = _passed_files(variables or {}, sweep)
    try:
        directory = _new_directory(site, job)
        if source is not None:
            (directory / rank_folder.CELL).write_text(source, encoding="utf-8")
        for name, data in values.items():
            (directory / name).write_bytes(data)
        path = program.path.resolve() if isinstance(program, Script) else directory / rank_folder.CELL
        on_ranks = RankProgram(
            str(path),
            str(Path.cwd()),
            _search_path(site, path if isinstance(program, Script) else None),
            program.args if isinstance(program, Script) else (),
        )
        write_file(
            directory / rank_folder.JOB_PROGRAM,
            JobProgram(on_ranks, sweep is not None, job.replicas, one_node=job.nnodes == 1),
        )
        (directory / scheduler_at(site).SCRIPT).write_text(
            batch_script(site, job, directory), encoding="utf-8"
        )
    except OSError as error:
        raise EngineError(
            f"cannot write a job's directory under {site.jobs} ({error.strerror}): set [paths] jobs of the "
            "site's file to a folder that every node sees, or free some room"
        ) from None
    record = _record(job, site, on_ranks.file, sweep)
    write_record(directory, record)
    return directory, record


def batch_script(site: SiteSpec, job: Job, directory: Path) -> str:
    """The batch script of a job whose ranks write into ``directory``."""
    own = {"PYTHONUNBUFFERED": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6"}
    own |= site_environment(site, one_node=job.nnodes == 1)
    if job.nnodes == 1:
        own |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    if job.replicas:
        own["RUST_LOG"] = "warn"  # torchft's servers tell each step else
    if not gpus_wanted(site, job):
        own |= {"CUDA_VISIBLE_DEVICES": ""} | ({"HIP_VISIBLE_DEVICES": ""} if site.gpu == "amd" else {})
    if site.runtime == "none" and not site.python:
        own["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    whole = replace(
        job,
        program=RANK_MODULE,
        module=True,
        args=(str(directory),),
        environment={**own, **job.environment},
        python=python_of(site),
        folder=str(Path.cwd()),
        directory=str(directory),
    )
    return scheduler_at(site).script(site, whole)


def scheduler_at(site: SiteSpec) -> Scheduler:
    """The site's scheduler; at a site without one Slurm, whose script can be looked at."""
    return scheduler_of("slurm" if site.scheduler == "none" else site.scheduler)


def _cell_text(program: str | Cell) -> str:
    cell = Cell(program, "%%sbatch") if isinstance(program, str) else program
    source = cell_source(cell.magic_line, cell.body)
    check_syntax(source)
    return source


def _passed_files(variables: Mapping[str, Any], sweep: tuple[str, Sequence[Any]] | None) -> dict[str, bytes]:
    if sweep is not None:
        name, values = sweep
        return {f"passed_{at}.pkl": pickled({**variables, name: value}) for at, value in enumerate(values)}
    return {rank_folder.PASSED: pickled(variables)} if variables else {}


def _new_directory(site: SiteSpec, job: Job) -> Path:
    root = Path(site.jobs)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours(root, "the folder of jobs", also=site.trusted)  # who can move it could put another script in place
    directory = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{job.title}-{secrets.token_hex(2)}"
    directory.mkdir(mode=0o700)
    return directory


def _search_path(site: SiteSpec, script_path: Path | None) -> tuple[str, ...]:
    """The notebook's own search path where the nodes run its Python; else the current folder alone."""
    first = [str(script_path.parent)] if script_path else [str(Path.cwd())]
    same_python = site.runtime == "none" and not site.python
    return (*first, *(path for path in sys.path if path and same_python))


def _record(job: Job, site: SiteSpec, program: str, sweep: Any) -> Record:
    return Record(
        name=job.title,
        scheduler="slurm" if site.scheduler == "none" else site.scheduler,
        nnodes=job.nnodes,
        nproc_per_node=job.nproc_per_node,
        device="GPU, NCCL" if gpus_wanted(site, job) >= job.nproc_per_node else "CPU, gloo",
        program=program,
        label="cell" if program.endswith(f"/{rank_folder.CELL}") else Path(program).name,
        submitted=time.strftime("%Y-%m-%dT%H:%M:%S"),
        time=job.time or site.time,
        tasks=tuple(range(job.replicas)) or indices(job.array),
        replicas=job.replicas,
        array=bool(job.array),
        sweep=tuple((sweep[0], repr(value)) for value in sweep[1]) if sweep else (),
    )
