"""`train(run)`: the third of the four lines. Start the ranks a layout asks for, train, bring back numbers.

    run = Run("gpt-1m", "this-machine", Layout(shard=2, zero=3, precision="fp32"), micro_batch=4, seq_len=64)
    measured = train(run, num_steps=4)

The ranks are processes of their own (`workshop.launch`): gloo on a laptop, NCCL where every rank has a GPU.
Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from workshop import launch
from workshop.facts.checks import check_keys
from workshop.facts.measurement import Measurement
from workshop.facts.run import Run
from workshop.facts.tabular import Table
from workshop.facts.units import format_bytes, format_seconds
from workshop.models import VOCAB_SIZE
from workshop.train.settings import Settings, check_run

_PROGRAM = """
import os

from workshop.train.on_rank import train_on_rank

train_on_rank(run, settings, folder or os.environ.get("WORKSHOP_JOB_FILES"), measured)
"""


@dataclass(frozen=True, repr=False)
class Trained:
    """A finished training: its losses, and what every rank measured (nothing, with ``measured=False``).

    ``worst`` is the rank that held most: its ``parts`` and ``allocated_bytes`` stand for the run, as the
    worst stage stands for a prediction.
    """

    first_step: int
    losses: tuple[float, ...]
    ranks: tuple[Measurement, ...]
    device: str
    text: str

    @property
    def worst(self) -> Measurement:
        """The rank with the largest peak; ValueError where nothing was measured."""
        if not self.ranks:
            raise ValueError("nothing was measured: train(run, measured=True)")
        return max(self.ranks, key=lambda one: one.allocated_bytes)

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes by part at the peak of the worst rank."""
        return self.worst.parts

    @property
    def allocated_bytes(self) -> int:
        """The peak of the worst rank."""
        return self.worst.allocated_bytes

    @property
    def step_seconds(self) -> float:
        """Seconds of a median step of the slowest rank, measuring included."""
        return max(one.step_seconds for one in self.ranks) if self.ranks else 0.0

    def table(self) -> Table:
        """A row for each rank."""
        rows = [
            [
                str(one.rank),
                format_bytes(one.allocated_bytes) if one.allocated_bytes else "not measured",
                format_bytes(sum(row.wire_bytes for row in one.traffic)),
                format_seconds(one.step_seconds),
            ]
            for one in self.ranks
        ]
        return Table(["rank", "peak", "sent in a step", "step"], rows, self.device, self.sentence)

    @property
    def sentence(self) -> str:
        """The losses in words."""
        if not self.losses:
            return f"no step was left to take: the run was at step {self.first_step} already"
        last = self.first_step + len(self.losses) - 1
        return f"loss {self.losses[0]:.3f} in step {self.first_step}, {self.losses[-1]:.3f} in step {last}"

    def __repr__(self) -> str:
        return str(self.table()) if self.ranks else f"{self.device}: {self.sentence}"

    def _repr_html_(self) -> str:
        return (
            self.table()._repr_html_() if self.ranks else f"<pre style='font-family:monospace'>{self!r}</pre>"
        )


def train(
    run: Run,
    *,
    folder: str | Path | None = None,
    measured: bool = True,
    limits: launch.Limits | None = None,
    **settings: Any,
) -> Trained:
    """Train a run on as many ranks as its layout has, on this machine, on the text of `workshop.models.text`.

    Args:
        run: what; its model must be Llama-shaped (`models.from_spec`) and know at least 256 words.
        folder: where checkpoints and the log go; a run that finds a checkpoint there goes on with it.
        measured: measure bytes, traffic and seconds on every rank; steps take longer for it.
        limits: seconds, bytes a rank may hold, restarts: see `workshop.launch.Limits`.
        settings: fields of `Settings`: ``num_steps``, ``learning_rate``, ``engine`` ... The optimizer is the
            run's.

    Raises:
        ValueError: the run cannot be trained here; the message says why and what would do.
        RankFailed: a rank failed; RankTimeout: they took too long (`workshop.launch`).
    """
    where = None if folder is None else str(Path(folder).resolve())
    program, variables = as_program(run, measured=measured, **settings)
    _check_machine(run)
    variables["folder"] = where
    result = launch.torchrun(program, run.layout.world_size, variables=variables, limits=limits)
    return trained(result, measured)


def as_program(run: Run, *, measured: bool = True, **settings: Any) -> tuple[str, dict[str, Any]]:
    """The training as a program of its ranks and what is passed to it, for a job (`launch.jobs`).

    Its checkpoints go to the job's own folder, where a job that was queued again finds them.

    Raises:
        ValueError: the run cannot be trained; the message says why and what would do.
    """
    check_keys("the settings of a training", settings, [field.name for field in fields(Settings)])
    chosen = Settings(**{"num_steps": 4, "optimizer": run.optimizer, **settings})
    chosen = _check(run, measured, chosen)
    return _PROGRAM, {"run": run, "settings": chosen, "folder": None, "measured": measured}


def trained(result: launch.Result, measured: bool = True) -> Trained:
    """What the ranks of `as_program` reported, as `train` returns it."""
    first = result[0]
    return Trained(
        first["first_step"],
        tuple(first["losses"]),
        tuple(result[rank]["measurement"] for rank in sorted(result.reports)) if measured else (),
        result.device,
        result.text,
    )


def _check(run: Run, measured: bool, settings: Settings) -> Settings:
    """The settings with the engine that the run gets; ValueError for what cannot be trained here."""
    if run.adapter is not None:
        raise ValueError(
            f"train() trains all weights, and the run has an adapter ({run.adapter.method}): "
            "give a run without one, or train a model of `workshop.adapt.methods.adapt` as lesson 51 does"
        )
    if run.model.vocab_size < VOCAB_SIZE:
        raise ValueError(
            f"{run.model.name} knows {run.model.vocab_size} words and the text has {VOCAB_SIZE}: its bytes"
        )
    if measured and settings.optimizer == "muon":
        raise ValueError(
            "muon is two optimizers, for matrices and for the rest, and a measurement takes every step() "
            "for the end of a step: train(run, measured=False)"
        )
    return check_run(run, settings)


def _check_machine(run: Run) -> None:
    """ValueError where the run is for a cluster that this machine is not."""
    if run.cluster.name == "this-machine":
        return
    session = launch.Session.get()
    session.wait_ready()
    if session.gpus < run.layout.world_size:
        raise ValueError(
            f"the run is for {run.cluster.name} and train() starts its ranks on this machine, with "
            f"{session.gpus} GPUs for {run.layout.world_size} ranks: say cluster='this-machine', "
            "or hand it in on the cluster with `workshop sbatch RUN.toml`"
        )
