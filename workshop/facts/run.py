"""A run: what is to be trained, on what, cut how, with which batch.

``Run`` is the "want" that every lesson begins with.  It only holds facts; what follows from them is predicted
(``workshop.predict``), rehearsed (``workshop.rehearse``) or measured.

    global_batch = micro_batch * accumulation * layout.data_parallel      (sequences)

Give ``global_batch`` or ``accumulation`` (micro-batches per step and data-parallel rank); the other follows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workshop.facts import catalogue, fitting
from workshop.facts.checks import check_choice, check_keys, check_not_huge, check_not_negative, check_positive
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import Implementation, implementation
from workshop.facts.layout import Layout
from workshop.facts.model import Linear, ModelSpec
from workshop.facts.precision import MOMENTS
from workshop.facts.tables import check_kind, from_table

ADAPTERS = ("lora", "adapter", "adapter-v2")
WIDEST_BITS = 32  # of a weight


@dataclass(frozen=True)
class Adapter:
    """Train a few new weights beside frozen ones (LoRA: Hu et al. 2021, arXiv 2106.09685).

    LoRA adds ``rank * (inputs + outputs)`` weights to each target map.  ``targets`` are names of
    :meth:`ModelSpec.linears`, or ``("all",)``.  ``base_bits`` is the width the frozen weights are kept in:
    16, or 4 for QLoRA's NF4 (Dettmers et al. 2023, arXiv 2305.14314: 4 bits and one fp32 scale per 64
    weights, which double quantization cuts from 0.5 to 0.127 bits a weight).  ``num_trainable`` overrides the
    count for methods whose size does not follow from the shape.
    """

    method: str = "lora"
    rank: int = 8
    targets: tuple[str, ...] = ("q", "v")
    base_bits: float = 16
    num_trainable: int = 0
    weight_bytes: float = 0.0  # per trainable weight; zero: as the precision's params

    def __post_init__(self) -> None:
        check_choice("adapter", self.method, ADAPTERS)
        check_positive("adapter: rank", self.rank)
        check_not_negative("adapter: num_trainable", self.num_trainable)
        if isinstance(self.targets, str):
            raise ValueError(f"adapter: targets are names, not {self.targets!r}; use ({self.targets!r},)")
        for name, most in (("base_bits", WIDEST_BITS), ("weight_bytes", WIDEST_BITS / 8)):
            check_kind(f"adapter: {name}", getattr(self, name), "float")
            if not 0 <= getattr(self, name) <= most:  # NaN is not
                raise ValueError(f"adapter: {name} must be from 0 to {most:g}, not {getattr(self, name)!r}")
        if not self.base_bits:
            raise ValueError("adapter: base_bits = 0 leaves no weights; 4.127 is QLoRA's NF4, and 16 is bf16")

    def targeted(self, model: ModelSpec, kind: str = "dense") -> tuple[Linear, ...]:
        """The linear maps of one layer that get an adapter."""
        linears = model.linears(kind)
        if self.targets == ("all",):
            return linears
        names = [linear.name for linear in linears]
        for target in self.targets:
            check_choice("adapter target", target, [*names, "all"])
        return tuple(linear for linear in linears if linear.name in self.targets)

    def params(self, model: ModelSpec) -> int:
        """Trainable weights: ``sum over targets of rank * (inputs + outputs)``, over all layers."""
        if self.num_trainable:
            return self.num_trainable
        return sum(
            linear.copies * self.rank * (linear.inputs + linear.outputs)
            for kind in model.layer_kinds()
            for linear in self.targeted(model, kind)
        )


@dataclass(frozen=True)
class Run:
    """Model + cluster + layout + batch + optimizer.  Names are looked up in the catalogues.

    ``document_len``: sequences are packed with documents of so many tokens, and no token attends to another
    document (a block-diagonal mask); 0: each sequence is one document.

    Raises ``ValueError`` when the parts do not fit together, with the values and the nearest that would do.
    """

    model: ModelSpec
    cluster: ClusterSpec
    layout: Layout = field(default_factory=Layout)
    micro_batch: int = 1
    seq_len: int = 2048
    global_batch: int = 0
    accumulation: int = 0
    optimizer: str = "adamw"
    adapter: Adapter | None = None
    target_len: int = 0  # the decoder's sequence of an encoder-decoder; 0: as ``seq_len``
    implementation: Implementation = field(default_factory=lambda: implementation("torch"))
    document_len: int = 0

    if TYPE_CHECKING:  # what the generated __init__ takes: names are looked up

        def __init__(  # noqa: PLR0913
            self,
            model: ModelSpec | str,
            cluster: ClusterSpec | str,
            layout: Layout = ...,
            micro_batch: int = ...,
            seq_len: int = ...,
            global_batch: int = ...,
            accumulation: int = ...,
            optimizer: str = ...,
            adapter: Adapter | None = ...,
            target_len: int = ...,
            implementation: Implementation | str = ...,
            document_len: int = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            object.__setattr__(self, "model", catalogue.model(self.model))
        if isinstance(self.cluster, str):
            object.__setattr__(self, "cluster", catalogue.cluster(self.cluster))
        if isinstance(self.implementation, str):
            object.__setattr__(self, "implementation", implementation(self.implementation))
        self._check_kinds()
        check_positive("micro_batch", self.micro_batch)
        check_positive("seq_len", self.seq_len)
        for name in ("global_batch", "accumulation", "target_len", "document_len"):
            check_not_negative(name, getattr(self, name))
        for name in ("micro_batch", "seq_len", "global_batch", "accumulation"):
            check_not_huge(name, getattr(self, name))
        check_choice("optimizer", self.optimizer, MOMENTS)
        self._check_lengths()
        self._fill_batch()
        reasons = fitting.problems(self.model, self.cluster, self.layout, self.seq_len)
        if reasons:
            raise ValueError("this layout cannot run:\n- " + "\n- ".join(reasons))

    def _check_kinds(self) -> None:
        """Raise ``ValueError`` for a part of a run that is none."""
        for name, kind, such_as in (
            ("model", ModelSpec, "a name of the catalogue, such as 'llama-3-8b', or a ModelSpec"),
            ("cluster", ClusterSpec, "a name of the catalogue, such as '8xH100', or a ClusterSpec"),
            ("layout", Layout, "a Layout, such as Layout(shard=8, zero=3)"),
            ("adapter", Adapter | None, "an Adapter, such as Adapter('lora', rank=16), or None"),
            ("implementation", Implementation, "a name, such as 'torch', or an Implementation"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be {such_as}, not {getattr(self, name)!r}")

    def _check_lengths(self) -> None:
        if self.target_len and not self.model.num_encoder_layers:
            raise ValueError(
                f"target_len = {self.target_len} is the sequence of an encoder-decoder's decoder, and "
                f"{self.model.name} has no encoder; leave it 0"
            )
        if self.document_len > self.seq_len:
            raise ValueError(
                f"document_len = {self.document_len} is longer than seq_len = {self.seq_len}: a document is "
                f"packed whole; use at most {self.seq_len}"
            )

    def _fill_batch(self) -> None:
        """Work out the one of ``global_batch`` and ``accumulation`` that was not given."""
        one_pass = self.micro_batch * self.layout.data_parallel
        if self.global_batch and self.accumulation and self.global_batch != one_pass * self.accumulation:
            raise ValueError(
                f"global_batch = {self.global_batch} is not micro_batch {self.micro_batch} times "
                f"data-parallel {self.layout.data_parallel} times accumulation {self.accumulation} "
                f"= {one_pass * self.accumulation}; give one of them"
            )
        if self.global_batch:
            if self.global_batch % one_pass:
                below = max(1, self.global_batch // one_pass) * one_pass
                raise ValueError(
                    f"global_batch = {self.global_batch} does not divide by micro_batch "
                    f"{self.micro_batch} times data-parallel {self.layout.data_parallel} = {one_pass}; "
                    f"the nearest that would do is {below}"
                )
            object.__setattr__(self, "accumulation", self.global_batch // one_pass)
        else:
            steps = self.accumulation or (self.layout.pipeline if self.layout.pipeline > 1 else 1)
            object.__setattr__(self, "accumulation", steps)
            object.__setattr__(self, "global_batch", one_pass * steps)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.global_batch * self.seq_len

    @property
    def tokens_per_rank(self) -> int:
        """Tokens of one micro-batch on one rank: the sequence is divided over the context ranks."""
        return self.micro_batch * self.seq_len // self.layout.context


def run_from_table(entry: Mapping[str, Any], what: str = "run") -> Run:
    """A run from nested tables (``model``, ``cluster`` ... and ``[layout]``, ``[adapter]``); unknown keys
    refused.
    """
    plain = (
        "model",
        "cluster",
        "micro_batch",
        "seq_len",
        "global_batch",
        "accumulation",
        "optimizer",
        "target_len",
        "document_len",
        "implementation",
    )
    check_keys(what, entry, (*plain, "layout", "adapter"))
    values = dict(entry)
    for required in ("model", "cluster"):
        if required not in values:
            raise ValueError(f"{what} does not say which {required}")
    if isinstance(values["model"], Mapping):
        values["model"] = from_table(ModelSpec, values["model"], f"{what}: [model]")
    else:
        check_kind(f"{what}: model", values["model"], "str")
    for key in ("cluster", "implementation"):
        check_kind(f"{what}: {key}", values.get(key, ""), "str")
    for key, kind in (("layout", Layout), ("adapter", Adapter)):
        if key in values:
            if not isinstance(values[key], Mapping):
                raise ValueError(f"{what}: {key} must be a table of its own, [{key}], not {values[key]!r}")
            table = {k: tuple(v) if isinstance(v, list) else v for k, v in values[key].items()}
            values[key] = from_table(kind, table, f"{what}: [{key}]")
    return Run(**values)


def read_run(path: str | Path) -> Run:
    """A run from a TOML file."""
    what = f"run file {Path(path).name}"
    try:
        entry = tomllib.loads(Path(path).read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is not TOML: {error}") from None
    return run_from_table(entry, what)
