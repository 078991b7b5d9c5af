"""What an engine's configuration file says of a run, in the words of `Run`.

Such a file says how to train: it names neither the model nor the length of its sequences. `Overrides` say the
rest. (A trainer's job file says both: `workshop.configs.job_file`.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from workshop.configs.engines import MIXED_PRECISION, layout_of
from workshop.configs.overrides import Overrides
from workshop.facts.layout import Layout
from workshop.facts.run import Run

WIDTHS = {engine: dict(recipes) for engine, recipes in MIXED_PRECISION.items()}
WIDTHS["fsdp"]["fsdp-fp8"] = "fp8 by AO"
"""What a file's width may mean, for each engine; torchao's FP8 is read, though it is not written."""


@dataclass(frozen=True)
class ParsedConfig:
    """One file's content. Zero and "" mean that the file does not say.

    ``width`` is ``"no"``, ``"bf16"``, ``"fp16"`` or ``"fp8 by BACKEND"``, "" where the file leaves it to
    somebody else. ``notes``: what was taken for granted. ``not_modelled``: why there is no `Run`, whatever
    is added.
    """

    engine: str
    ranks: int = 0
    zero: int = 0
    replicate: int = 1
    tensor: int = 1
    context: int = 1
    width: str = ""
    offload: str = "none"
    recompute: str = ""
    accumulation: int = 0
    micro_batch: int = 0
    global_batch: int = 0
    optimizer: str = ""
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that change no prediction; an engine's file lists what it does not understand instead."""
        return ()

    def in_words(self) -> str:
        """One line."""
        stage = f", ZeRO stage {self.zero}" if self.engine != "ddp" else ""
        replicas = f", {self.replicate} replicas" if self.replicate > 1 else ""
        replicas += f", layers cut {self.tensor} ways" if self.tensor > 1 else ""
        replicas += f", sequences cut {self.context} ways" if self.context > 1 else ""
        ranks = f"{self.ranks} ranks" if self.ranks else "ranks as the launcher starts them"
        return f"{self.engine}{stage}{replicas}, {ranks}, mixed precision {self.width or 'left open'}"

    def missing(self, overrides: Overrides) -> list[str]:
        """Arguments that must still be given before there is a run, each with an example."""
        missing: list[str] = []
        if overrides.spec() is None:
            missing.append('model ("llama-3-8b")')
        if not overrides.device:
            missing.append('device ("H100")')
        if not overrides.seq_len:
            missing.append("seq_len (8192)")
        if not self._ranks(overrides):
            missing.append("num_processes (64)")
        if not (self.micro_batch or overrides.micro_batch or self._derived_micro_batch(overrides)):
            missing.append("micro_batch (1)")
        if not (self.width or overrides.precision):
            missing.append('precision ("deepspeed-bf16")')
        return missing

    def _ranks(self, overrides: Overrides) -> int:
        return one_of("num_processes", self.ranks, overrides.num_processes)

    def _derived_micro_batch(self, overrides: Overrides) -> int:
        """DeepSpeed's third number from the other two."""
        steps = self.accumulation or overrides.accumulation or 1
        each = steps * max(1, self._ranks(overrides) // (self.tensor * self.context))
        return self.global_batch // each if self.global_batch else 0

    def run(self, overrides: Overrides) -> Run:
        """The run that file and arguments describe together.

        Raises:
            ValueError: Something is missing (all of it is named), or the two contradict each other.
        """
        lacking = self.missing(overrides)
        if lacking:
            raise ValueError(f"the file does not say everything; give also {', '.join(lacking)}")
        ranks = self._ranks(overrides)
        micro_batch = one_of("micro_batch", self.micro_batch, overrides.micro_batch)
        steps = one_of("accumulation", self.accumulation, overrides.accumulation)
        cuts: dict[str, Any] = layout_of(
            self.engine, self.zero, ranks // (self.tensor * self.context), self.replicate
        )
        layout = Layout(
            **cuts,
            tensor=self.tensor,
            context=self.context,
            precision=self._recipe(overrides),
            offload=self.offload,
            recompute=one_of("recompute", self.recompute, overrides.recompute) or "none",
        )
        spec, cluster = overrides.spec(), overrides.cluster(ranks)
        assert spec is not None, "missing() has looked"
        assert cluster is not None, "missing() has looked"
        return Run(
            spec,
            cluster,
            layout,
            micro_batch=micro_batch or self._derived_micro_batch(overrides),
            seq_len=overrides.seq_len,
            global_batch=self.global_batch,
            accumulation=steps or (0 if self.global_batch else 1),
            optimizer=one_of("optimizer", self.optimizer, overrides.optimizer) or "adamw",
            adapter=overrides.adapter,
            implementation="deepspeed" if self.engine == "deepspeed" else "torch",
        )

    def _recipe(self, overrides: Overrides) -> str:
        """The precision recipe; a given one must be one that the file allows."""
        allowed = [recipe for recipe, width in WIDTHS[self.engine].items() if self.width in ("", width)]
        if not overrides.precision:
            return allowed[0]
        if overrides.precision not in allowed:
            raise ValueError(
                f"precision = {overrides.precision!r}, but the file says {self.engine} with mixed precision "
                f"{self.width or 'left open'!r}: that is {' or '.join(allowed)}"
            )
        return overrides.precision

    def reasons_against(self) -> list[str]:
        """Why there is no run, whatever is added."""
        if self.not_modelled or not self.width or self.width in WIDTHS[self.engine].values():
            return list(self.not_modelled)
        widths = ", ".join(sorted(set(WIDTHS[self.engine].values())))
        return [
            f"{self.engine} with mixed precision {self.width!r} is not predicted here (it is with {widths})"
        ]


Word = TypeVar("Word", int, str)


def one_of(what: str, in_file: Word, given: Word) -> Word:
    """The file's word, or the argument's; both only if they agree."""
    if in_file and given and in_file != given:
        raise ValueError(
            f"the file says {what} = {in_file!r}, and you {given!r}: leave yours out, or correct it"
        )
    return in_file or given
