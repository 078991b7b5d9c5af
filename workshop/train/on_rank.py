"""What one rank does for `train(run)`: build, cut, train, measure, report."""

from __future__ import annotations

import gc
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workshop.facts.measurement import Measurement
from workshop.facts.run import Run
from workshop.launch.report import report
from workshop.measure import counter
from workshop.measure.report import Measured
from workshop.measure.session import measure
from workshop.models.from_spec import gpt_of
from workshop.models.gpt import GPT, RMSNorm
from workshop.models.moe import Experts, Router
from workshop.models.text import TextBatches
from workshop.train.apply_layout import apply_layout
from workshop.train.checkpoint import Checkpoints
from workshop.train.group import join_group
from workshop.train.log import open_log
from workshop.train.loop import Losses, train_loop
from workshop.train.ready import Ready
from workshop.train.settings import Settings, is_cut


def train_on_rank(run: Run, settings: Settings, folder: str | None = None, measured: bool = True) -> None:
    """Train the run on this rank and report ``losses``, ``first_step`` and, if wanted, a ``measurement``.

    settings: with the run's engine in them, as `workshop.train.launched.as_program` gives them.
    """
    device = join_group()
    losses, measurement = _train(run, settings, folder, measured)
    reported: dict[str, Any] = {"first_step": losses.first_step, "losses": losses.values}
    if measurement is not None:
        reported["measurement"] = as_measurement(measurement, run, settings, str(device))
    report(**reported)
    gc.collect()  # DDP and FSDP hold the group: what is left of them goes first
    dist.destroy_process_group()


def _train(
    run: Run, settings: Settings, folder: str | None, measured: bool
) -> tuple[Losses, Measured | None]:
    rank = dist.get_rank()
    torch.manual_seed(settings.seed)
    on_meta = settings.engine in ("fsdp", "zero") and not is_cut(run.layout)
    with torch.device("meta" if on_meta else "cpu"):
        model = gpt_of(run.model)  # on meta: it is born layer by layer, and never whole on a rank
    ready = apply_layout(
        model,
        run.layout,
        settings,
        micro_batch=run.micro_batch,
        accumulation=run.accumulation,
        initialise=initialise,
    )
    del model  # of a cut model a rank keeps its part
    torch.manual_seed(settings.seed + 1 + rank)
    share, shares = run.layout.data_rank(rank), run.layout.data_parallel
    batches = TextBatches(run.seq_len, run.global_batch, share, shares, run.accumulation, settings.seed)
    log = open_log(settings.log if folder and rank == 0 else "none", folder or ".")
    checkpoints = Checkpoints(Path(folder), settings.keep) if folder else None
    try:
        if not measured:
            return train_loop(ready, batches, settings, log=log, checkpoints=checkpoints), None
        with _measuring(ready) as measurement:
            losses = train_loop(ready, batches, settings, log=log, checkpoints=checkpoints)
        return losses, measurement
    finally:
        log.close()


def _measuring(ready: Ready) -> measure:
    """Bytes, traffic and seconds; without bytes where this build of torch does not count them on a CPU."""
    exact = True
    if ready.device.type == "cpu":
        try:
            counter.enable()
        except counter.CounterUnavailable:
            exact = False
    return measure(ready.model, ready.optimizers[0], memory=exact)


def initialise(module: nn.Module) -> None:
    """First values of what one module of a GPT itself holds, for a model born on the meta device."""
    if isinstance(module, RMSNorm):
        nn.init.ones_(module.weight)
    elif isinstance(module, Router | Experts):
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.02)
    else:
        GPT._initialise(module)


def as_measurement(measured: Measured, run: Run, settings: Settings, device: str) -> Measurement:
    """What was measured as a record, with the times of a median step (the first is left out)."""
    steps = measured.steps[1:] or measured.steps
    phases = {
        name: statistics.median(getattr(step, f"{name}_seconds") for step in steps)
        for name in ("forward", "backward", "optimizer", "communication")
        if steps
    }
    record = measured.to_measurement(
        model=run.model.name,
        device=device,
        torch=str(torch.__version__),
        optimizer=settings.optimizer,
        precision=run.layout.precision,
        global_batch=run.global_batch,
        seq_len=run.seq_len,
    )
    median = statistics.median(step.total_seconds for step in steps) if steps else 0.0
    return replace(record, step_seconds=median, phases=phases)
