"""What a reader must be told beside a file, because no file says it."""

from __future__ import annotations

from dataclasses import dataclass

from workshop.facts import catalogue
from workshop.facts.checks import check_choice
from workshop.facts.device import ClusterSpec, split_count
from workshop.facts.layout import RECOMPUTE
from workshop.facts.model import ModelSpec
from workshop.facts.precision import MOMENTS, RECIPES
from workshop.facts.run import Adapter

PROGRAMS = ("accelerate", "trainer", "deepspeed")
"""Who reads an engine's file: a loop around ``Accelerator()``, transformers' Trainer (and what is built on
it, such as TRL and axolotl), or ``deepspeed.initialize`` itself."""


@dataclass(frozen=True)
class Overrides:
    """Facts about a run that its configuration file may leave out; empty ones are not known.

    Args:
        model: a known model's name, or its `ModelSpec`.
        device: what each process runs on, ``"H100"``, ``"this-machine"``; or a whole cluster, ``"64xH100"``.
        micro_batch, seq_len, accumulation: of the script's batches.
        optimizer: by name, as in `Run`.
        precision: a recipe, where the file leaves it open.
        recompute: ``"none"``, ``"selective"`` or ``"full"``, where the script decides.
        adapter: what is trained in place of the model (peft).
        num_processes: ranks that will be started, where the file does not say.
        classes: names of the classes of the model's modules.
        layer: name of the class of its layers.
        program: who reads the file, one of `PROGRAMS`; some settings are right for one and wrong for another.
    """

    model: ModelSpec | str = ""
    device: str = ""
    micro_batch: int = 0
    seq_len: int = 0
    accumulation: int = 0
    optimizer: str = ""
    precision: str = ""
    recompute: str = ""
    adapter: Adapter | None = None
    num_processes: int = 0
    classes: tuple[str, ...] = ()
    layer: str = ""
    program: str = ""

    def __post_init__(self) -> None:
        for name, known in (
            ("program", PROGRAMS),
            ("optimizer", MOMENTS),
            ("precision", RECIPES),
            ("recompute", RECOMPUTE),
        ):
            if given := getattr(self, name):
                check_choice(name, given, known)

    def spec(self) -> ModelSpec | None:
        """The model, or None where none is given; ValueError for an unknown name."""
        if isinstance(self.model, str):
            return catalogue.model(self.model) if self.model else None
        return self.model

    def cluster(self, num_processes: int) -> ClusterSpec | None:
        """That many of the device, in nodes as their vendor builds them; None where no device is given."""
        if not self.device:
            return None
        count, name = split_count(self.device)
        return catalogue.cluster(
            self.device if count > 1 or name == "this-machine" else f"{num_processes}x{name}"
        )

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks are known to run on CPUs."""
        return self.device == "this-machine"

    def readers(self, via_accelerate: bool = False) -> frozenset[str]:
        """Who may read the file: `program` where it is known, else all, or those that come through
        Accelerate."""
        return frozenset([self.program] if self.program else PROGRAMS[:2] if via_accelerate else PROGRAMS)

    def with_ranks(self, num_processes: int) -> Overrides:
        """The same, with a number of ranks where none was given."""
        return Overrides(**{**vars(self), "num_processes": self.num_processes or num_processes})
