"""``workshop plan``: the fastest layouts of a model on a cluster that fit, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from workshop.cli.counts import sequences
from workshop.cli.named_model import named_model
from workshop.facts import catalogue
from workshop.facts.checks import check_positive
from workshop.predict.plan import Plan, Proposal, Search, plan
from workshop.predict.time.rates import rates_for
from workshop.show.tables import plan_table

SEQ_LEN = 4096
BAR_AFTER_SECONDS = 0.5
PAGE_COLUMNS = 113  # where no terminal says how wide it is


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line of ``workshop plan``."""
    parser.description = (
        "Time every layout of a model on a cluster and print the fastest that fit, what limits them, and "
        "why the first is as it is. Exit code 0: there is one; 1: nothing fits; 2: a wrong call."
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="a known model, or a TOML file of one")
    parser.add_argument("--cluster", required=True, metavar="NAME", help="for example 64xH100")
    parser.add_argument(
        "--global-batch",
        required=True,
        metavar="N",
        help="sequences of a step (512), or with K, M or G tokens in powers of 1,024 (4M)",
    )
    parser.add_argument("--seq-len", type=int, metavar="S", help="tokens of a sequence (default: 4096)")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="layouts to print (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(options: argparse.Namespace) -> int:
    """The command: 0, or 1 where nothing fits."""
    model, cluster = named_model(options.model), catalogue.cluster(options.cluster)
    rates_for(cluster.device)
    seq_len = options.seq_len if options.seq_len is not None else min(SEQ_LEN, model.max_positions or SEQ_LEN)
    check_positive("--seq-len", seq_len)
    check_positive("--top", options.top)
    if model.max_positions and seq_len > model.max_positions:
        raise ValueError(f"--seq-len {seq_len}: {model.name} has {model.max_positions} learned positions")
    batch = sequences(options.global_batch, seq_len)
    try:
        with progress_bar() as progress:
            best = plan(model, cluster, batch, seq_len, Search(top=options.top, progress=progress))
    except ValueError as nothing:
        print(f"workshop plan: {nothing}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(as_json(best), indent=1))
    else:
        table = plan_table(best)
        question = f"{model.name} on {cluster.name}: {batch:,} sequences of {seq_len:,} tokens a step"
        question += f" ({batch * seq_len:,} tokens)"
        table = dataclasses.replace(table, caption=f"{question}\n{table.caption}")
        print(table.within(shutil.get_terminal_size((PAGE_COLUMNS, 0)).columns))
    return 0


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, once the search has taken half a second; nothing in a pipe."""
    from tqdm import tqdm

    with tqdm(
        desc="layouts timed", unit="", unit_scale=True, delay=BAR_AFTER_SECONDS, leave=False, disable=None
    ) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def as_json(best: Plan) -> dict[str, Any]:
    """What a program reads."""
    return {
        "looked_at": best.looked_at,
        "fitted": best.fitted,
        "cannot_be_told_apart": list(best.tied),
        "proposals": [_proposal(proposal) for proposal in best.proposals],
    }


def _proposal(proposal: Proposal) -> dict[str, Any]:
    wanted = proposal.run
    return {
        "layout": dataclasses.asdict(wanted.layout),
        "devices": proposal.devices,
        "micro_batch": wanted.micro_batch,
        "accumulation": wanted.accumulation,
        "global_batch": wanted.global_batch,
        "seq_len": wanted.seq_len,
        "seconds": proposal.seconds,
        "interval_seconds": list(proposal.interval),
        "tokens_per_second": proposal.tokens_per_second,
        "mfu": proposal.mfu,
        "memory_bytes": proposal.memory_bytes,
        "causes_seconds": proposal.causes,
        "limited_by": proposal.limit,
        "reasons": proposal.reasons,
    }
