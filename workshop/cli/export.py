"""``workshop export``: a cell becomes a script for torchrun, and a batch file for Slurm.

The script is the cell without its magic line, nothing else: a plain program. The batch file starts one
torchrun a node through ``srun``; the torchruns meet through PyTorch's own c10d rendezvous on the first node
of the job.

Source: PyTorch, "torchrun (Elastic Launch)"; Slurm, ``sbatch(1)`` and ``srun(1)``.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from workshop.facts.checks import nearest_name
from workshop.launch.jobs.directory import scheduler_at
from workshop.launch.jobs.options import chosen_site
from workshop.site.current import site_environment
from workshop.site.job import Job
from workshop.site.spec import SiteSpec

_ALIKE = 0.6  # of two files' names, before one is proposed for the other
_MAGIC = re.compile(r"^%%(?:torchrun|sbatch)\b(?P<flags>.*)$", re.MULTILINE)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop export``."""
    parser.description = (
        "Write a %%torchrun cell (saved as text, or a plain script) as a script that torchrun starts, and "
        "with --slurm a batch file beside it."
    )
    parser.add_argument("source", type=Path, metavar="FILE", help="a file with the cell, or a script.py")
    parser.add_argument("--nproc-per-node", "-n", type=int, metavar="N", help="ranks on each node")
    parser.add_argument("--nnodes", type=int, default=1, metavar="K", help="nodes (default: 1)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to (default: beside FILE)")
    parser.add_argument(
        "--batch", "--slurm", dest="slurm", action="store_true", help="write NAME.sbatch (NAME.qsub) too"
    )
    parser.add_argument("--gpus", action="store_true", help="one GPU for each rank in the batch file")
    parser.add_argument(
        "--time", default="", metavar="HH:MM:SS", help="time limit (default: the site's, else 00:10:00)"
    )
    parser.add_argument("--site", metavar="FILE", help="the site's file, for the batch file")


def run(options: argparse.Namespace) -> int:
    """The command."""
    of_batch = [f"--{name}" for name in ("gpus", "time", "site") if getattr(options, name)]
    if of_batch and not options.slurm:
        raise ValueError(f"{', '.join(of_batch)}: of the batch file; add --batch")
    program, flags = split_cell(read_program(options.source))
    nproc = ranks_in(flags) if options.nproc_per_node is None else options.nproc_per_node
    if nproc is None:
        raise ValueError(f"{options.source} does not say how many ranks: give --nproc-per-node N")
    if nproc < 1 or options.nnodes < 1:
        raise ValueError(f"{nproc} ranks on {options.nnodes} nodes: both must be 1 or more")
    folder = options.output or options.source.parent
    script = folder / f"{options.source.stem}.py"
    batch_text = sbatch(script.name, nproc, options) if options.slurm else ""
    with told(f"cannot write into {folder}", "choose another folder with --output"):
        folder.mkdir(parents=True, exist_ok=True)
        write_script(script, program, options.source)
    quoted = shlex.quote(script.name)
    print(f"export: {script}")
    print(f"        python3 -m torch.distributed.run --standalone --nproc-per-node={nproc} {quoted}")
    if options.slurm:
        site = site_of(options)
        scheduler = scheduler_at(site)
        batch = script.with_suffix(Path(scheduler.SCRIPT).suffix)
        with told(f"cannot write {batch}", "choose another folder with --output"):
            batch.write_text(batch_text, encoding="utf-8")
        command = [scheduler.SUBMIT, *scheduler.submit_flags(site), batch.name]
        print(f"export: {batch}\n        {shlex.join(command)}")
    return 0


def read_program(source: Path) -> str:
    """The text of a cell or a script that somebody named.

    Raises:
        ValueError: There is no such file (the nearest in its folder is named), it is a folder, cannot be
            read, or is no text.
    """
    if source.is_dir():
        raise ValueError(f"{source} is a folder: name the file with the cell or the script")
    if not source.exists():
        beside = source.parent.iterdir() if source.parent.is_dir() else ()
        alike = [path.name for path in beside if path.suffix == source.suffix and path.is_file()]
        where = f" in {source.parent.resolve()}" if source.parent.is_dir() else f": no folder {source.parent}"
        close = nearest_name(source.name, alike, cutoff=_ALIKE)
        meant = f"; did you mean {close!r}?" if close else ""
        raise ValueError(f"there is no file {source.name}{where}{meant}")
    try:
        with told(f"cannot read {source}", "look at who may read it (ls -l)"):
            return source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is no text in UTF-8 (byte {error.start}), as a script is") from None


@contextlib.contextmanager
def told(what: str, do: str) -> Iterator[None]:
    """An error of the file system as a sentence (ValueError): what was tried, why it failed, what to do."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{what} ({error.strerror}): {do}") from None


def split_cell(text: str) -> tuple[str, str]:
    """The program and the flags of its ``%%torchrun`` line (none in a plain script).

    Raises:
        ValueError: The file is a notebook, or is no Python once the magic line is gone.
    """
    magic = _MAGIC.search(text)
    program, flags = text, ""
    if magic and not text[: magic.start()].strip():
        program, flags = text[magic.end() :].lstrip("\n"), magic["flags"].strip()
    if program.lstrip().startswith("{") and '"nbformat"' in program:
        raise ValueError("this is a notebook: save one cell with %%torchrun --save FILE and export that")
    try:
        compile(program, "the cell", "exec")
    except SyntaxError as error:
        raise ValueError(
            f"line {error.lineno} is not Python: {error.msg}: {(error.text or '').strip()}"
        ) from None
    return program, flags


def ranks_in(flags: str) -> int | None:
    """The number after ``-n``, ``--nproc-per-node`` or ``--nproc_per_node`` in a cell's flags.

    None where there is none, or ``gpu``, ``cpu`` or ``auto``, which the machine decides.

    Raises:
        ValueError: What stands there is neither.
    """
    flag = re.search(r"(?:^|\s)(?:-n(?=[\s=\d])|--nproc[-_]per[-_]node)[\s=]*(\S+)", flags)
    if flag is None or flag[1] in ("gpu", "cpu", "auto"):
        return None
    if not flag[1].isdecimal():
        where = f"the cell's flags say {flag[1]!r} where the number of ranks stands: {flags}"
        raise ValueError(f"{where}; write a number, gpu, cpu or auto")
    return int(flag[1])


def write_script(script: Path, program: str, source: Path) -> None:
    """Write ``program``; a different file that stands there already is not overwritten.

    Raises:
        ValueError: ``script`` is another file with another text.
    """
    if script.exists() and script.read_text(encoding="utf-8") != program and not script.samefile(source):
        raise ValueError(f"{script} is there and differs: remove it, or choose another folder with --output")
    script.write_text(program, encoding="utf-8")


def site_of(options: argparse.Namespace) -> SiteSpec:
    """The site of ``--site``, else one that nothing is known of."""
    return chosen_site(options.site) if options.site else SiteSpec()


def sbatch(script: str, nproc: int, options: argparse.Namespace) -> str:
    """The batch file's text: for the scheduler of ``--site`` or for a site that nothing is known of.

    Raises:
        ValueError: The time limit is not ``HH:MM:SS`` (or ``D-HH:MM:SS``), or the site's nodes have too few
            GPUs.
    """
    site = site_of(options)
    job = Job(
        Path(script).stem,
        script,
        nnodes=options.nnodes,
        nproc_per_node=nproc,
        time=options.time,
        gpus_per_node=nproc if options.gpus else None,
        environment=site_environment(site, one_node=options.nnodes == 1),
        python=site.python,
    )
    return scheduler_at(site).script(site, job)
