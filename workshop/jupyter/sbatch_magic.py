"""``%%sbatch``: a ``%%torchrun`` cell as a job. ``%sbatch``: a script as a job, or one that is under way.

    %%sbatch -N 2 -n 4 --time 00:05:00 --pass run --into results

The cell stays what it was, a plain program; what changes is who starts it. Flags have the names that sbatch
and torchrun give them. Everything about the place (account, partition, container ...) is the site's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from workshop.jupyter.flags import explain_errors, read_flags
from workshop.jupyter.magics import LiveView
from workshop.launch import Cell, RankFailed, RankInterrupted, Script, jobs
from workshop.launch import script as program_file
from workshop.launch.jobs.client import SchedulerError
from workshop.launch.jobs.options import chosen_site, job_of, sweep_of
from workshop.launch.request import cell_source, check_syntax, select
from workshop.site.job import Job
from workshop.site.job_flags import add_job_flags
from workshop.site.spec import SiteSpec


def job_flags(magic: Any) -> Any:
    """The flags of a job (`site.job_flags`), as decorators of a magic."""
    add_job_flags(lambda *names, **options: _collect(magic, names, options))
    return magic


def _collect(magic: Any, names: tuple[str, ...], options: dict[str, Any]) -> None:
    argument(*names, **options)(magic)


def notebook_flags(magic: Any) -> Any:
    """What a cell of fresh ranks has too."""
    for flag in (
        argument("--into", metavar="NAME", help="variable that gets what the ranks report(...)"),
        argument(
            "--pass", dest="variables", metavar="NAMES", help="notebook variables for the ranks: run,lr"
        ),
        argument(
            "--allow-pickle", action="store_true", help="read reported objects too that had to be pickled"
        ),
    ):
        magic = flag(magic)
    return magic


@magics_class
class JobMagics(Magics):
    """Registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell

    @explain_errors("%%sbatch")
    @cell_magic("sbatch")
    @magic_arguments()
    @job_flags
    @notebook_flags
    @argument("--save", metavar="FILE.py", help="also write the cell as a program of its own")
    def sbatch_cell(self, line: str, cell: str) -> None:
        """Hand the cell in as a job and follow it: queue, output of the ranks, results."""
        args = read_flags(self.sbatch_cell, line)
        variables = select(args.variables or "", self.shell.user_ns)
        magic_line = f"%%sbatch {line}"
        check_syntax(cell_source(magic_line, cell), magic="%%sbatch")
        if args.save:
            program_file.save(Path(args.save), magic_line, cell, variables)
        self._hand_in(args, Cell(cell, magic_line), job_of(args, "cell"), variables)

    @explain_errors("%sbatch")
    @line_magic("sbatch")
    @magic_arguments()
    @job_flags
    @notebook_flags
    @argument("--follow", metavar="JOB", help="no new job: follow this one, which was detached")
    @argument("program", nargs=argparse.REMAINDER, metavar="script.py ...", help="a script and its arguments")
    def sbatch_line(self, line: str) -> None:
        """Hand a script in as a job; what follows the script's name is handed on to it."""
        args = read_flags(self.sbatch_line, line)
        if args.follow:
            followed = jobs.find(args.follow, chosen_site(args.site))
            self._show(followed, args)
            return
        if not args.program:
            raise ValueError("%sbatch needs a script: %sbatch -N 2 -n 4 train.py --lr 1e-3")
        script = program_file.file_of(Path(args.program[0]))
        variables = select(args.variables or "", self.shell.user_ns)
        self._hand_in(args, Script(script, tuple(args.program[1:])), job_of(args, script.stem), variables)

    def _hand_in(self, args: Any, program: Cell | Script, job: Job, variables: dict[str, Any]) -> None:
        if args.into is not None and not args.into.isidentifier():
            raise ValueError(f"--into {args.into}: a variable's name, for example --into results")
        site, sweep = chosen_site(args.site), sweep_of(args.sweep)
        if args.dry_run or args.test_only:
            self._try_out(args, site, job, sweep)
            return
        submitted = jobs.submit(program, job, site, variables=variables, sweep=sweep, detach=args.detach)
        if submitted.without():
            print(submitted.without())
        if not args.detach:
            self._show(submitted, args)
            return
        print(f"{submitted.record.sentence}; it outlives this notebook: %sbatch --follow {submitted.number}")
        submitted.allow_pickle = args.allow_pickle
        self._bind(args.into, submitted)

    def _try_out(self, args: Any, site: SiteSpec, job: Job, sweep: jobs.Sweep | None) -> None:
        """The script, and with ``--test-only`` what the scheduler says of it. No job is made."""
        if args.dry_run:
            print(jobs.try_out(job, site, sweep), end="")
        if args.test_only:
            print(jobs.check(job, site, sweep))

    def _show(self, job: jobs.Submitted, args: Any) -> None:
        """Follow the job in the cell, show what was printed whatever happened, and bind ``--into``."""
        view, into = LiveView(self.shell), args.into
        job.allow_pickle = args.allow_pickle
        view.begin(job.record.sentence)
        try:
            result = job.follow(view)
        except (RankFailed, RankInterrupted, SchedulerError) as error:
            partial = getattr(error, "result", None)
            if partial is not None:
                view.end(partial)
                self._bind(into, partial)
            raise
        view.end(result)
        self._bind(into, result)

    def _bind(self, into: str | None, value: Any) -> None:
        if into:
            self.shell.user_ns[into] = value
