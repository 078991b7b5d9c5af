"""What a trainer's job file says: model, batch and the whole layout (torchtitan, Megatron-LM, NeMo).

An engine's configuration says how to train (`workshop.configs.parsed`); a job file says what as well. What it
leaves open is mostly the cluster, and the number of ranks, which the launcher gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workshop.configs.overrides import Overrides
from workshop.configs.parsed import one_of
from workshop.facts.device import split_count
from workshop.facts.implementation import Implementation
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec
from workshop.facts.run import Run

IGNORED = ("name", "source", "dropout")
"""Fields of `ModelSpec` that are not its shape; dropout is a setting of the training."""


@dataclass(frozen=True)
class ParsedJob:
    """One job file's content. Zero and "" mean that the file does not say.

    Args:
        program: whose file it is.
        shape: fields of `ModelSpec` that the file gives; all of them, or those that a model of `Overrides`
        must
            agree with.
        layout: fields of `Layout`, but for the data-parallel ranks.
        replicate, shard: data-parallel ranks by kind; 0: those that are left. Nothing is sharded at ZeRO
        stage 0. ranks: of the launcher's own arguments or of the file.
        micro_batch, seq_len: of one pass of one rank.
        global_batch, accumulation: of a step; one of them, or neither.
        target_len: the decoder's sequence of an encoder-decoder.
        optimizer: as in `Run`.
        implementation: what the program's kernels keep.
        notes: what was taken for granted.
        without_effect: settings that change no prediction.
        not_modelled: settings that would, and why there is no `Run`.
    """

    program: str
    shape: Mapping[str, Any]
    layout: Mapping[str, Any]
    implementation: Implementation
    replicate: int = 0
    shard: int = 0
    ranks: int = 0
    micro_batch: int = 0
    seq_len: int = 0
    global_batch: int = 0
    accumulation: int = 0
    target_len: int = 0
    optimizer: str = "adamw"
    notes: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = field(default=(), repr=False)
    not_modelled: tuple[str, ...] = ()

    @property
    def engine(self) -> str:
        """Whose engine trains."""
        return self.program

    def in_words(self) -> str:
        """One line."""
        named = self.shape.get("name", "a model that the file does not name")
        cuts = [f"{axis} {self.layout[axis]}" for axis in self._axes() if self.layout.get(axis, 1) > 1]
        ranks = f"{self.ranks} ranks" if self.ranks else "ranks as the launcher starts them"
        return f"{named}, {', '.join(cuts) or 'nothing but the batch is cut'}, {ranks}"

    @staticmethod
    def _axes() -> tuple[str, ...]:
        return ("tensor", "context", "pipeline", "virtual_stages", "expert")

    def missing(self, overrides: Overrides) -> list[str]:
        """Arguments that must still be given before there is a run, each with an example."""
        missing = []
        if overrides.spec() is None and not self._is_whole():
            missing.append('model ("llama-3-8b")')
        if not overrides.device:
            missing.append('device ("H100", or "64xH100")')
        if not self.seq_len and not overrides.seq_len:
            missing.append("seq_len (8192)")
        if not self.micro_batch and not overrides.micro_batch:
            missing.append("micro_batch (1)")
        if not self._ranks(overrides) and overrides.device:
            missing.append("num_processes (64)")
        return missing

    def reasons_against(self) -> list[str]:
        """Why there is no run, whatever is added."""
        return list(self.not_modelled)

    def _is_whole(self) -> bool:
        return all(self.shape.get(name) for name in ("num_layers", "hidden_size", "num_heads", "vocab_size"))

    def _ranks(self, overrides: Overrides) -> int:
        count = split_count(overrides.device)[0] if overrides.device else 0
        num_processes = one_of("num_processes", self.ranks, overrides.num_processes)
        return num_processes or (count if count > 1 else 0)

    def model(self, overrides: Overrides) -> ModelSpec:
        """The file's model, or the given one, which must be of the file's shape.

        Raises:
            ValueError: The two differ; every field is told.
        """
        given = overrides.spec()
        if given is None:
            return ModelSpec(**self.shape)
        shape = {name: value for name, value in self.shape.items() if name not in IGNORED and value}
        differ = [
            f"{name} = {value!r}, not {getattr(given, name)!r}"
            for name, value in shape.items()
            if getattr(given, name) != value
        ]
        if differ:
            raise ValueError(f"{given.name} is not the file's model: the file says {'; '.join(differ)}")
        drops = self.implementation.dropout and bool(self.shape.get("dropout"))
        return given.resized(dropout=True) if drops and not given.dropout else given

    def run(self, overrides: Overrides) -> Run:
        """The run that file and arguments describe together.

        Raises:
            ValueError: Something is missing, not modelled, or the two contradict each other; everything is
                named.
        """
        if self.not_modelled:
            raise ValueError("not modelled here:\n- " + "\n- ".join(self.not_modelled))
        lacking = self.missing(overrides)
        if lacking:
            raise ValueError(f"the file does not say everything; give also {', '.join(lacking)}")
        ranks = self._ranks(overrides)
        layout = self._layout(ranks, overrides)
        cluster = overrides.cluster(ranks)
        assert cluster is not None, "missing() has looked"
        steps = one_of("accumulation", self.accumulation, overrides.accumulation)
        return Run(
            self.model(overrides),
            cluster,
            layout,
            micro_batch=one_of("micro_batch", self.micro_batch, overrides.micro_batch),
            seq_len=one_of("seq_len", self.seq_len, overrides.seq_len),
            global_batch=self.global_batch,
            accumulation=0 if self.global_batch else steps or 1,
            optimizer=one_of("optimizer", self.optimizer, overrides.optimizer),
            adapter=overrides.adapter,
            target_len=self.target_len,
            implementation=self.implementation,
        )

    def _layout(self, ranks: int, overrides: Overrides) -> Layout:
        cuts = dict(self.layout)
        model_ranks = cuts.get("tensor", 1) * cuts.get("context", 1) * cuts.get("pipeline", 1)
        if ranks % model_ranks:
            raise ValueError(
                f"{ranks} ranks do not divide by tensor x context x pipeline = {model_ranks} of the file"
            )
        data = ranks // model_ranks
        if not cuts.get("zero"):
            replicate, shard = data, 1
        else:
            replicate = self.replicate or (data // self.shard if self.shard else 1)
            shard = self.shard or data // max(1, replicate)
        if replicate * shard != data:
            raise ValueError(
                f"{ranks} ranks leave {data} for the batch, and the file says {replicate} replicas of "
                f"{shard} shards"
            )
        if overrides.recompute:
            cuts["recompute"] = one_of("recompute", cuts.get("recompute", "none"), overrides.recompute)
        if overrides.precision:
            cuts["precision"] = one_of("precision", cuts["precision"], overrides.precision)
        return Layout(replicate=replicate, shard=shard, **cuts)
