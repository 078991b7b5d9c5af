"""``workshop sbatch FILE``: a cell, a script or a run as a job of the site's scheduler, followed to its end.

    workshop sbatch train.py -N 2 -n 4 --time 00:30:00
    workshop sbatch cell.txt --sweep lr=1e-3,3e-3 --dry-run
    workshop sbatch run.toml -N 2 --set num_steps=100 --set save_every=20 --requeue

A ``.toml`` is a run (`facts.run`): it is trained by `workshop.train`, and its checkpoints go to the job's own
folder, so that it resumes after a requeue.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from workshop.cli.export import ranks_in, read_program, split_cell
from workshop.facts.run import Run, read_run
from workshop.launch import Cell, EngineError, RankFailed, RankInterrupted, Script, jobs
from workshop.launch.jobs.options import chosen_site, job_of, sweep_of
from workshop.site.job import Job
from workshop.site.job_flags import add_job_flags
from workshop.site.spec import SiteSpec

Handed = tuple[Cell | Script, Job, dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop sbatch``."""
    parser.description = (
        "Turn FILE (a cell as text, a script, or a RUN.toml) into a job of the site's scheduler, follow "
        "it, print what its ranks print; Ctrl-C cancels it. Exit code 0: it ran well; 1: it failed; 2: a "
        "wrong call."
    )
    parser.add_argument("source", type=Path, metavar="FILE", help="cell.txt, script.py or RUN.toml")
    add_job_flags(parser.add_argument)
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the training of a RUN.toml: num_steps=100; may be repeated",
    )
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="for the script, after --")


def run(options: argparse.Namespace) -> int:
    """The command. Exit code 0: it ran well (or was handed in); 1: it failed; 2: a wrong call."""
    site, sweep = chosen_site(options.site), sweep_of(options.sweep)
    program, job, variables = handed_in(options, job_of(options, options.source.stem, site))
    if options.dry_run or options.test_only:
        if options.dry_run:
            print(jobs.try_out(job, site, sweep), end="")
        return _tested(job, site, sweep) if options.test_only else 0
    try:
        submitted = jobs.submit(program, job, site, variables=variables, sweep=sweep, detach=options.detach)
    except EngineError as error:
        print(f"workshop sbatch: {error}", file=sys.stderr)
        return 1
    print(f"{submitted.record.sentence}\n  {submitted.directory}", flush=True)
    if submitted.without():
        print(f"  {submitted.without()}", flush=True)
    if options.detach:
        print(f"  later: workshop jobs {submitted.number}")
        return 0
    return followed(submitted)


def handed_in(options: argparse.Namespace, job: Job) -> Handed:
    """The program, the job with as many ranks as the program wants, and what is passed to it.

    Raises ValueError for a file that is no program, a run of another number of ranks, an unknown setting.
    """
    source: Path = options.source
    if source.suffix == ".toml":
        read_program(source)  # says what is wrong with the file, if anything is
        return _run_of_the_house(options, job, read_run(source))
    if options.settings:
        raise ValueError("--set is for a RUN.toml; a script takes its arguments after --")
    text = read_program(source)
    body, flags = split_cell(text)
    if options.nproc_per_node is None and (ranks := ranks_in(flags)):
        job = replace(job, nproc_per_node=ranks)
    if body != text:
        return Cell(body, f"%%torchrun {flags}"), job, {}
    return Script(source, tuple(options.arguments)), job, {}


def _run_of_the_house(options: argparse.Namespace, job: Job, run: Run) -> Handed:
    from workshop.train.launched import as_program

    wanted, each = run.layout.world_size, options.nproc_per_node
    if each is None:
        each, rest = divmod(wanted, options.nnodes)
        if rest:
            raise ValueError(f"{wanted} ranks of the layout do not divide over {options.nnodes} nodes: -N")
    if each * options.nnodes != wanted:
        raise ValueError(
            f"-N {options.nnodes} -n {each} makes {each * options.nnodes} ranks and the layout has {wanted}"
        )
    body, variables = as_program(run, measured=False, **settings_of(options.settings))
    return Cell(body, "# workshop sbatch"), replace(job, nproc_per_node=each), variables


def settings_of(words: list[str]) -> dict[str, Any]:
    """``["num_steps=100"]`` as keyword arguments. Raises ValueError for a word without =."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--set {word}: write it as --set num_steps=100")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def _tested(job: Job, site: SiteSpec, sweep: jobs.Sweep | None) -> int:
    try:
        print(jobs.check(job, site, sweep))
    except EngineError as error:
        print(f"workshop sbatch: {error}", file=sys.stderr)
        return 1
    return 0


class Printed:
    """Follows a job on a terminal: each new state once, each line of the text when it has come to stay."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, sentence: str, _text: str) -> None:
        """Say the state, if it is new."""
        if sentence != self._said:
            print(sentence, flush=True)
            self._said = sentence


def followed(submitted: jobs.Submitted) -> int:
    """Follow a job to its end and print what its ranks said; 0 where it ended well, 1 where not."""
    try:
        result = submitted.follow(Printed())
    except (RankFailed, RankInterrupted, EngineError) as error:
        partial = getattr(error, "result", None)
        print(partial.text if partial is not None else "", end="")
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    print(result.text, end="")
    return 0
