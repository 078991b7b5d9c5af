"""A run that serves: what is wanted of a server, before any program is named.

A `Run` already says which model, on which devices, cut how. Three of its fields are read for a server::

    layout             tensor: ranks that share each layer; also pipeline, replicate, expert
    micro_batch        requests that one replica works on at once
    seq_len            the longest request, prompt and answer together, in tokens

`Serving` adds what only a server has: in which format weights and keys and values are kept, in blocks of how
many tokens, and how much of a device's memory may be used. What belongs to training (optimizer states cut by
ZeRO, recomputation, accumulation, an adapter that is trained) is refused: a server would ignore it silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from workshop.facts.checks import check_choice, check_not_negative, check_positive
from workshop.facts.model import ModelSpec
from workshop.facts.precision import RECIPES
from workshop.facts.run import Run

KV_FORMATS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
"""Bytes of one number of the KV cache. Scales of 8-bit formats (one a layer, or a head) are not counted."""

WHOLE = ("fp32", "bf16", "fp16")
"""Formats that are computed in as they are."""


@dataclass(frozen=True)
class Serving:
    """A run that answers requests.

    Args:
        run: model, cluster, layout, most requests at once (`micro_batch`), longest request (`seq_len`).
        weights: format of the linear maps' weights, a name of `workshop.predict.weight_formats`; "": `dtype`.
        kv: format of keys and values, one of `KV_FORMATS`; "": `dtype`.
        block_size: tokens of one block of the paged cache.
        memory_share: share of a device's memory that weights, workspace and cache may take together.
        batched_tokens: most tokens of one forward pass; a longer prompt is cut into chunks. 0: whole prompts.
        prefix_cache: blocks of a prompt that came before are used again.
        quantized_head: the output head is in the format of `weights` too; most engines leave it in 16 bits.
        kv_layers: layers that keep keys and values of their own, where the others read theirs
            (Brandon et al. 2024, arXiv 2405.12981); 0: all.
        dtype: the 16- or 32-bit format that the rest is computed in; follows from the precision recipe.
        draft: name of the small model that speculates, and how many tokens it is ahead; "" and 0: none.

    Raises ValueError for what no server does, with the value and what would do.
    """

    run: Run
    weights: str = ""
    kv: str = ""
    block_size: int = 16
    memory_share: float = 0.9
    batched_tokens: int = 0
    prefix_cache: bool = True
    quantized_head: bool = False
    kv_layers: int = 0
    draft: str = ""
    draft_tokens: int = 0
    dtype: str = field(init=False, default="")

    def __post_init__(self) -> None:
        reasons = training_only(self.run)
        if reasons:
            raise ValueError("a server does not do this:\n- " + "\n- ".join(reasons))
        object.__setattr__(self, "dtype", RECIPES[self.run.layout.precision].dtype)
        for name in ("weights", "kv"):
            object.__setattr__(self, name, getattr(self, name) or self.dtype)
        if self.weights != self.dtype and self.weights in WHOLE:
            raise ValueError(
                f"weights = {self.weights!r} and precision = {self.run.layout.precision!r}, which computes "
                f"in {self.dtype}: whole weights are in the format that is computed in; leave weights empty"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        check_choice("format of the KV cache", self.kv, KV_FORMATS)
        check_positive("block_size", self.block_size)
        for name in ("batched_tokens", "kv_layers", "draft_tokens"):
            check_not_negative(name, getattr(self, name))
        if not 0 < self.memory_share <= 1:
            raise ValueError(f"memory_share must lie above 0 and be at most 1, not {self.memory_share!r}")
        if bool(self.draft) != bool(self.draft_tokens):
            raise ValueError(
                f"draft = {self.draft!r} with draft_tokens = {self.draft_tokens}: speculation needs both"
            )
        if self.kv_layers > self.run.model.num_layers:
            raise ValueError(
                f"kv_layers = {self.kv_layers}: {self.model.name} has {self.model.num_layers} layers"
            )

    @property
    def model(self) -> ModelSpec:
        """The model that answers."""
        return self.run.model

    @property
    def tensor(self) -> int:
        """Ranks that share each layer."""
        return self.run.layout.tensor

    def changed(self, **values: Any) -> Serving:
        """A copy with some fields changed; a field of `Run` or of `Layout` goes to these."""
        own = {name: value for name, value in values.items() if name in self.__dataclass_fields__}
        rest = {name: value for name, value in values.items() if name not in own}
        layout = {n: v for n, v in rest.items() if n in self.run.layout.__dataclass_fields__}
        of_run = {n: v for n, v in rest.items() if n not in layout}
        if "precision" in layout:  # what followed from the old recipe follows from the new one
            own = {n: "" for n in ("weights", "kv") if getattr(self, n) == self.dtype} | own
        if layout:
            of_run["layout"] = replace(self.run.layout, **layout)
        if of_run:
            own["run"] = replace(self.run, **{"global_batch": 0, "accumulation": 0, **of_run})
        return replace(self, **own)


def training_only(run: Run) -> list[str]:
    """What a run says that has a meaning only while training, in sentences."""
    layout, reasons = run.layout, []
    if layout.zero or layout.shard > 1:
        reasons.append(
            f"zero = {layout.zero}, shard = {layout.shard}: states of an optimizer are cut; weights of a "
            "server are cut by tensor or pipeline, and replicate makes more replicas"
        )
    if layout.sequence_parallel:
        reasons.append("sequence_parallel: activations are cut to save what a backward pass would need")
    if layout.recompute != "none" or layout.offload != "none":
        reasons.append(
            f"recompute = {layout.recompute!r}, offload = {layout.offload!r}: there is no backward pass"
        )
    if run.accumulation > 1 and layout.pipeline == 1:
        reasons.append(
            f"accumulation = {run.accumulation}: micro_batch says how many requests are served at once"
        )
    if run.adapter is not None:
        reasons.append(f"adapter {run.adapter.method!r}: merge it into the weights first")
    if run.document_len:
        reasons.append(f"document_len = {run.document_len}: requests are not packed into one sequence")
    if run.model.num_encoder_layers or not run.model.causal:
        reasons.append(f"{run.model.name} is no decoder: it does not write token after token")
    if RECIPES[layout.precision].dtype not in ("bf16", "fp16", "fp32"):
        reasons.append(f"precision = {layout.precision!r} trains in few bits; say weights = 'fp8' instead")
    return reasons
