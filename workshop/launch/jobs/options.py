"""What the flags of a job (`site.job_flags`) mean: a site, a job, a sweep."""

from __future__ import annotations

import ast
import os
from typing import Any

from workshop.launch.jobs.queue import Sweep
from workshop.site.current import current_site, expanded, named_site
from workshop.site.job import Job
from workshop.site.spec import SiteSpec, read_site


def chosen_site(file: str | None) -> SiteSpec:
    """The site of ``--site``, else the one in force. Raises as `site.current`."""
    return expanded(read_site(named_site(file)), os.environ) if file else current_site()


def job_of(args: Any, name: str, site: SiteSpec | None = None) -> Job:
    """The job that the flags describe; its program is filled in when it is handed in."""
    site = site or chosen_site(args.site)
    ranks = args.nproc_per_node
    if args.replicas is not None and args.replicas < 1:
        raise ValueError(f"--replicas {args.replicas}: one or more; without it the program runs once")
    return Job(
        args.job_name or name,
        "",
        nnodes=args.nnodes,
        nproc_per_node=(site.gpus or (1 if args.replicas else 2)) if ranks is None else ranks,
        time=args.time,
        array=args.array,
        requeue=args.requeue,
        signal=args.signal,
        gpus_per_node=args.gpus_per_node,
        max_restarts=args.max_restarts,
        replicas=args.replicas or 0,
    )


def sweep_of(text: str | None) -> Sweep | None:
    """``lr=1e-3,3e-3`` as a variable and its values: numbers where they are numbers, else texts.

    Raises ValueError where there is no name or no value.
    """
    if not text:
        return None
    name, equals, values = text.partition("=")
    if not equals:
        raise ValueError(f"--sweep {text}: write a variable and its values, as lr=1e-3,3e-3")
    return Sweep(name.strip(), tuple(_value(value.strip()) for value in values.split(",") if value.strip()))


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
