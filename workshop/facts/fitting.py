"""Why a layout is impossible, and what would do instead.

Each rule below is a fact about how the cut is made: tensor parallelism hands whole heads to ranks, so the
heads must divide; context parallelism deals the sequence out in ``2 * context`` pieces, so that early (cheap)
and late (dear) positions of a causal mask share a rank, or hands out heads (Ulysses); a pipeline needs a
layer for every chunk; experts are dealt out whole.
"""

from __future__ import annotations

from workshop.facts.checks import nearest_divisor
from workshop.facts.device import ClusterSpec
from workshop.facts.layout import Layout
from workshop.facts.model import ModelSpec

OF_EXPERTS = ("moe", "moe_act", "router", "shared_experts")
OF_LATENT_ATTENTION = ("mla_up_proj", "latent")
"""Of `layout.RECOMPUTE_MODULES`: what only a mixture of experts has, and what only latent attention has."""


def problems(model: ModelSpec, cluster: ClusterSpec, layout: Layout, seq_len: int) -> list[str]:
    """Every reason why this layout cannot run, in sentences; empty when it can."""
    reasons = _tensor_problems(model, layout) + _sequence_problems(layout, seq_len)
    reasons += _context_problems(model, layout)
    reasons += _pipeline_problems(model, layout) + _expert_problems(model, layout)
    reasons += _recompute_problems(model, layout)
    if layout.world_size != cluster.num_devices and not cluster.shared_memory:
        sizes = " x ".join(f"{axis} {size}" for axis, size in layout.sizes().items())
        reasons.append(
            f"{sizes} = {layout.world_size} ranks, but {cluster.name} has {cluster.num_devices} devices"
        )
    if model.positions == "learned" and seq_len > model.max_positions:
        reasons.append(
            f"seq_len = {seq_len} is longer than {model.name}'s {model.max_positions} learned positions"
        )
    return reasons


def _not_divided(what: str, number: int, by: str, size: int) -> list[str]:
    if number % size == 0:
        return []
    good = nearest_divisor(number, size)
    return [f"{what} = {number} does not divide by {by} = {size}; the nearest that would do is {by} = {good}"]


def _tensor_problems(model: ModelSpec, layout: Layout) -> list[str]:
    if layout.tensor == 1:
        return []
    reasons = _not_divided("num_heads", model.num_heads, "tensor", layout.tensor)
    if not model.is_mla and model.num_kv_heads % layout.tensor and layout.tensor % model.num_kv_heads:
        reasons.append(
            f"num_kv_heads = {model.num_kv_heads} and tensor = {layout.tensor}: one must divide the other"
        )
    return reasons + _not_divided("ffn_hidden_size", model.ffn_hidden_size, "tensor", layout.tensor)


def _context_problems(model: ModelSpec, layout: Layout) -> list[str]:
    if layout.context == 1 or layout.context_method != "ulysses":
        return []
    kv_heads = model.num_heads if model.is_mla else max(1, model.num_kv_heads // layout.tensor)
    return ulysses_problems(model.num_heads // layout.tensor, kv_heads, layout.context)


def ulysses_problems(heads: int, kv_heads: int, ranks: int) -> list[str]:
    """Why ``ranks`` cannot share a sequence by trading heads for positions; empty when they can.

    ``heads``, ``kv_heads``: of one rank before the trade. Each rank gets whole query heads; a key head
    that several ranks need is sent to each of them.
    """
    if heads % ranks:
        return [f"{heads} query heads do not divide by {ranks} ranks: Ulysses cuts heads. Use a ring."]
    if kv_heads % ranks and ranks % kv_heads:
        return [f"{kv_heads} key and value heads and {ranks} ranks: one must divide the other"]
    return []


def _sequence_problems(layout: Layout, seq_len: int) -> list[str]:
    # Rings and gathered keys deal out an early and a late part to each rank; Ulysses cuts in plain parts.
    parts = 1 if layout.context_method == "ulysses" else 2
    if layout.context > 1 and seq_len % (parts * layout.context):
        good = nearest_divisor(seq_len // parts, layout.context) if seq_len % parts == 0 else 1
        pieces = f"{parts} x context = {parts * layout.context} pieces"
        nearest = f"the nearest that would do is context = {good}"
        return [f"seq_len = {seq_len} does not divide into {pieces}; {nearest}"]
    if layout.sequence_parallel:
        return _not_divided("seq_len on a context rank", seq_len // layout.context, "tensor", layout.tensor)
    return []


def _pipeline_problems(model: ModelSpec, layout: Layout) -> list[str]:
    if model.num_encoder_layers and layout.pipeline > 1:
        return [
            f"pipeline = {layout.pipeline}: an encoder-decoder is not cut into stages here; use pipeline = 1"
        ]
    total = layout.pipeline * layout.virtual_stages
    layers = model.num_layers + (2 if layout.embedding_in_stages else 0)
    if total > layers:
        wanted = (
            f"pipeline = {layout.pipeline} with {layout.virtual_stages} virtual stages needs {total} layers"
        )
        most = max(1, model.num_layers // layout.virtual_stages)
        has = f"{model.name} has {model.num_layers}"
        return [f"{wanted}, and {has}; the most that would do is pipeline = {most}"]
    return _end_problems(model, layout)


def _end_problems(model: ModelSpec, layout: Layout) -> list[str]:
    """Why the layers named for the first and the last stage leave too few for the others, or some over."""
    ends = {name: getattr(layout, name) for name in ("first_stage_layers", "last_stage_layers")}
    named = " and ".join(f"{name} = {count}" for name, count in ends.items() if count)
    if not named:
        return []
    taken, others = sum(ends.values()), layout.pipeline * layout.virtual_stages
    others -= sum(count > 0 for count in ends.values())
    left, part = model.num_layers - taken, "stage" if layout.virtual_stages == 1 else "chunk"
    if others and left < others:
        shown = (
            f"{named}: {taken} of {model.name}'s {model.num_layers} layers leave {max(left, 0)} for {others}"
        )
        most = f"name at most {model.num_layers - others} in all"
        return [f"{shown} other {part}{'s' if others > 1 else ''}, and each needs one; {most}"]
    if not others and left:
        shown = f"{named} are {taken} layers, but the two stages hold all {model.num_layers} of {model.name}"
        return [f"{shown}; give one of them and leave the other 0"]
    return []


def _expert_problems(model: ModelSpec, layout: Layout) -> list[str]:
    if not model.is_moe:
        none = f"but {model.name} has no experts; use expert = 1"
        return [f"expert = {layout.expert}, {none}"] if layout.expert > 1 else []
    cut, reasons = (
        layout.expert_tensor,
        _not_divided("num_experts", model.num_experts, "expert", layout.expert),
    )
    ranks, needed = layout.world_size // layout.pipeline, layout.expert * cut
    if ranks % needed:
        reasons.append(
            f"a pipeline stage has {ranks} ranks, which do not divide by expert = {layout.expert} times "
            f"expert_tensor = {cut}; expert_tensor = 0 cuts experts as tensor does"
        )
    return reasons + _not_divided("moe_ffn_hidden_size", model.moe_ffn_hidden_size, "expert_tensor", cut)


def _recompute_problems(model: ModelSpec, layout: Layout) -> list[str]:
    """Modules that are to be recomputed, and that the model does not have."""
    if not layout.recompute_modules:
        return []
    lacking = [*(() if model.is_moe else OF_EXPERTS), *(() if model.is_mla else OF_LATENT_ATTENTION)]
    return [
        f"recompute_modules names {name!r}, which {model.name} does not have; leave it out"
        for name in layout.recompute_modules
        if name in lacking
    ]
