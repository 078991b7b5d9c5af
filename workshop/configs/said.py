"""What a configuration file says of a run, in the words of `Run`; the common ground of both readers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workshop.configs.engines import MIXED_PRECISION, layout_of
from workshop.configs.given import Given
from workshop.facts.layout import Layout
from workshop.facts.run import Run


@dataclass(frozen=True)
class Said:
    """One file's content. Zero and "" mean that the file does not say."""

    engine: str
    ranks: int = 0
    zero: int = 0
    replicate: int = 1
    width: str = ""  # "no", "bf16", "fp16"; "" where the file leaves it to somebody else
    offload: str = "none"
    recompute: str = ""
    accumulation: int = 0
    micro_batch: int = 0
    global_batch: int = 0
    optimizer: str = ""
    notes: tuple[str, ...] = field(default=())  # what was taken for granted


def missing(said: Said, given: Given) -> list[str]:
    """Arguments that must still be given before there is a run, each with an example."""
    found = []
    if given.spec() is None:
        found.append('model ("llama-3-8b")')
    if not given.device:
        found.append('device ("H100")')
    if not given.seq_len:
        found.append("seq_len (8192)")
    if not _ranks(said, given):
        found.append("num_processes (64)")
    if not (said.micro_batch or given.micro_batch or _derived_micro_batch(said, given)):
        found.append("micro_batch (1)")
    if not (said.width or given.precision):
        found.append('precision ("deepspeed-bf16")')
    return found


def _ranks(said: Said, given: Given) -> int:
    return said.ranks or given.num_processes


def _derived_micro_batch(said: Said, given: Given) -> int:
    """DeepSpeed's third number from the other two."""
    steps = said.accumulation or given.accumulation or 1
    return said.global_batch // (steps * max(1, _ranks(said, given))) if said.global_batch else 0


def run_of(said: Said, given: Given) -> Run:
    """The run that file and arguments describe together.

    Raises
    ------
    ValueError
        Something is missing (all of it is named), or the two contradict each other.
    """
    lacking = missing(said, given)
    if lacking:
        raise ValueError(f"the file does not say everything; give also {', '.join(lacking)}")
    ranks = _ranks(said, given)
    micro_batch = _one("micro_batch", said.micro_batch, given.micro_batch) or _derived_micro_batch(
        said, given
    )
    cuts: dict[str, Any] = dict(layout_of(said.engine, said.zero, ranks, said.replicate))
    layout = Layout(
        **cuts,
        precision=_recipe(said, given),
        offload=said.offload,
        recompute=str(_one("recompute", said.recompute, given.recompute) or "none"),
    )
    steps = _one("accumulation", said.accumulation, given.accumulation)
    spec, cluster = given.spec(), given.cluster(ranks)
    assert spec is not None, "missing() has looked"
    assert cluster is not None, "missing() has looked"
    return Run(
        spec,
        cluster,
        layout,
        micro_batch=int(micro_batch),
        seq_len=given.seq_len,
        global_batch=said.global_batch,
        accumulation=int(steps or (0 if said.global_batch else 1)),
        optimizer=str(_one("optimizer", said.optimizer, given.optimizer) or "adamw"),
        adapter=given.adapter,
        implementation="deepspeed" if said.engine == "deepspeed" else "torch",
    )


def _one(what: str, said: int | str, given: int | str) -> int | str:
    """The file's word, or the argument's; both only if they agree."""
    if said and given and said != given:
        raise ValueError(
            f"the file says {what} = {said!r}, and you {given!r}: leave yours out, or correct it"
        )
    return said or given


def _recipe(said: Said, given: Given) -> str:
    """The precision recipe; a given one must be one that the file allows."""
    allowed = [recipe for recipe, width in MIXED_PRECISION[said.engine].items() if said.width in ("", width)]
    if not allowed:
        raise ValueError(
            f"{said.engine} with mixed precision {said.width!r} is not predicted here: say bf16 or 'no'"
        )
    if not given.precision:
        return allowed[0]
    if given.precision not in allowed:
        raise ValueError(
            f"precision = {given.precision!r}, but the file says {said.engine} with mixed precision "
            f"{said.width or 'left open'!r}: that is {' or '.join(allowed)}"
        )
    return given.precision
