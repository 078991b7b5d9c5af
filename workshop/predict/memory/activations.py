"""Saved activations of one rank: which tensors stay, on which layers, for how many micro-batches at once.

**Recompute** trades them for time (Chen et al. 2016, arXiv 1604.06174).  ``"full"`` keeps a layer's input
only, and while backward is inside a layer that layer's tensors exist once more.  ``"selective"`` drops the
modules it names; by default the core of attention, whose tensors are quadratic in the sequence and cheap to
make again (Korthikanti et al. 2022, section 5).  The module ``"ops"`` is PyTorch's selective checkpointing by
operation, as torchtitan sets it: the results of attention and of every second matmul are kept, all else is
recomputed.

**A pipeline** keeps several micro-batches alive.  With 1F1B, stage ``i`` of ``p`` has ``min(p - i, m)`` in
flight; with ``v`` virtual stages rank ``i`` holds ``2 (p - i - 1) + (v - 1) p + 1`` chunks of ``L / (p v)``
layers at the end of its warm-up (Narayanan et al. 2021, arXiv 2104.04473, section 2.2); GPipe holds all
``m``.  Zero-bubble schedules after Qi et al. 2023 (arXiv 2401.10241): H1 as 1F1B, H2 up to ``2 (p - i) - 1``.
Schedules that fold the pipeline are in :mod:`workshop.predict.memory.peaks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.predict.case import Policy, TrainingConfig
from workshop.predict.layouts import Array, Layouts, chunk_span, layers_in_chunk
from workshop.predict.memory.saved import Saved, cross_attention_saved, layer_saved, stream_bytes


@dataclass(frozen=True)
class PerToken:
    """Bytes per token by how they are divided; ``score`` is per token and key, divided over tensor ranks;
    ``traded`` is like ``tensor``, and only there where context ranks trade heads for positions (Ulysses).
    """

    tensor: float = 0.0
    sequence: float = 0.0
    whole: float = 0.0
    expert: float = 0.0
    score: float = 0.0
    traded: float = 0.0

    def on(self, layouts: Layouts) -> Array:
        """Bytes on a rank for one micro-batch."""
        linear = (
            self.tensor / layouts.tensor
            + self.sequence / layouts.along
            + self.whole
            + self.expert * layouts.expert_tensor / layouts.along
        )
        if self.traded:
            linear = linear + layouts.context_by("ulysses") * self.traded / layouts.tensor
        return layouts.tokens * (linear + self.score * layouts.seq_len / layouts.tensor)


MODULES = {
    "mlp": ("mlp_up", "mlp_act"),
    "moe": ("moe", "moe_act", "router", "shared_experts"),
    "mla_up_proj": ("qkv",),
}
"""Modules that Megatron-LM recomputes under one name, as those of :mod:`workshop.predict.memory.saved`."""


def total(tensors: Iterable[Saved]) -> PerToken:
    """Sum a list of tensors by how they are divided."""
    sums = {"tensor": 0.0, "sequence": 0.0, "whole": 0.0, "expert": 0.0, "score": 0.0, "traded": 0.0}
    for tensor in tensors:
        sums["score" if tensor.per_key else tensor.split] += tensor.bytes_per_token
    return PerToken(**sums)


def kept(model: ModelSpec, kind: str, policy: Policy, how: Implementation, numbers: Precision) -> list[Saved]:
    """The tensors of one layer that stay until backward under a recompute policy."""
    everything = layer_saved(model, kind, how, numbers)
    stream = stream_bytes(how, numbers)
    layer_input = [Saved("layer's input", model.hidden_size, stream, "sequence", "layer_input")]
    if policy.name == "full":
        return layer_input
    if policy.trained is not None:
        everything = with_frozen_weights(model, kind, everything, policy, how, numbers)
    if policy.name == "none":
        return everything
    if "ops" in policy.modules:
        outputs = [
            Saved(
                linear.name,
                linear.outputs * linear.active,
                numbers.compute,
                {"column": "tensor", "row": "sequence", "none": "sequence"}[linear.split],
                "ops",
            )
            for linear in model.linears(kind)[::2]
        ]
        core = [t for t in everything if t.name in ("attention output", "row statistics")]
        return layer_input + outputs + core
    drop = {part for name in policy.modules or ("core_attn",) for part in MODULES.get(name, (name,))}
    return [tensor for tensor in everything if tensor.module not in drop]


def with_frozen_weights(
    model: ModelSpec, kind: str, tensors: list[Saved], policy: Policy, how: Implementation, numbers: Precision
) -> list[Saved]:
    """Saved tensors when weights are frozen and some linear maps carry an adapter.

    A frozen map's backward needs its weights, not its input, so inputs that serve only weight gradients go
    (but not those of 4-bit maps in libraries whose ``four_bit_inputs`` keep them, needed or not).
    LoRA adds the input of each target's first matrix (dropped, with the mask, where there is dropout) and the
    low-rank activation; adapter-v2 scales the result of every linear map and so keeps it.
    """
    trained = set(policy.trained or ())
    norms = policy.adapter == "adapter-v2"  # trains the norms' weights too
    quantized = policy.quantized and how.four_bit_inputs
    stay = [t for t in tensors if not t.only_for or (norms if t.only_for == ("norm",) else quantized)]
    linears = [linear for linear in model.linears(kind) if linear.name in trained]
    if policy.adapter == "adapter-v2":
        return stay + [
            Saved(
                f"{linear.name} before its scale",
                linear.outputs * linear.active,
                numbers.compute,
                "sequence",
                "adapter",
            )
            for linear in model.linears(kind)
        ]
    if policy.adapter == "lora":
        inputs = {linear.inputs for linear in linears}
        stay += [
            Saved("adapter's input", width, numbers.compute + how.adapter_dropout, "sequence", "adapter")
            for width in inputs
        ]
        if how.fused_qkv_views:
            stay += [
                Saved(
                    f"adapter's update of {linear.name}",
                    linear.outputs,
                    numbers.compute,
                    "sequence",
                    "adapter",
                )
                for linear in linears
            ]
    return stay


@lru_cache(maxsize=256)
def per_token(
    model: ModelSpec, kind: str, policy: Policy, how: Implementation, numbers: Precision
) -> PerToken:
    """:func:`kept`, summed."""
    return total(kept(model, kind, policy, how, numbers))


def in_flight(layouts: Layouts, schedule: str) -> Array:
    """Chunks (a micro-batch's pass through one chunk of layers) alive at once on each rank, at most."""
    p, v, m, i = layouts.pipeline, layouts.virtual_stages, layouts.accumulation, layouts.stage
    if schedule in ("gpipe", "breadth-first"):
        return m * v
    if schedule == "naive":
        return v * np.ones_like(p)
    if schedule == "zb-h2":
        return np.minimum(2 * (p - i) - 1, m)
    plain = np.minimum(p - i, m)
    warm_up = 2 * (p - i - 1) + (v - 1) * np.maximum(layouts.group, p) + 1
    return np.where(v > 1, np.minimum(warm_up, m * v), plain)


def chunks_alive(layouts: Layouts, schedule: str, chunk: int) -> Array:
    """Of :func:`in_flight`, those of the rank's chunk number ``chunk``.

    Micro-batches go through a rank's chunks in groups of ``group`` (usually ``p``): first chunk, second
    chunk, ...
    """
    alive, group = in_flight(layouts, schedule), np.maximum(layouts.group, layouts.pipeline)
    rounds, rest = np.divmod(alive, group * layouts.virtual_stages)
    count = rounds * group + np.clip(rest - chunk * group, 0, group)
    return np.where(layouts.virtual_stages > 1, count, alive if chunk == 0 else 0)


def encoder_decoder_bytes(config: TrainingConfig, layouts: Layouts) -> Array:
    """Saved activations of an encoder and a decoder on one stage; cross attention reads the encoder."""
    model, how, numbers = config.model, config.how, config.numbers
    decoder = replace(layouts, seq_len=(config.target_len or layouts.seq_len) + 0 * layouts.seq_len)
    encoder = layers_bytes(config, "dense", model.num_encoder_layers + 0 * layouts.stage, layouts)
    own = layers_bytes(config, "dense", model.num_layers + 0 * layouts.stage, decoder)
    parts = total(cross_attention_saved(model, how, numbers))
    scores = parts.score * decoder.tokens * layouts.seq_len / layouts.tensor
    cross = replace(parts, score=0.0).on(decoder) + scores
    keys = (model.kv_width + model.v_width) * numbers.compute * layouts.tokens / layouts.tensor
    return encoder + own + model.num_layers * (cross + keys)


def saved_bytes(config: TrainingConfig, layouts: Layouts) -> Array:
    """Saved activations of all layers and of all micro-batches in flight on a rank."""
    if config.model.num_encoder_layers:
        return encoder_decoder_bytes(config, layouts)
    result = np.zeros_like(layouts.tokens)
    for chunk in range(int(np.max(layouts.virtual_stages))):
        counts = layers_in_chunk(config.model, layouts, chunk)
        alive = chunks_alive(layouts, config.schedule, chunk)
        for kind in config.kinds:
            result = result + alive * layers_bytes(config, kind, counts[kind], layouts)
    mtp = config.model.num_mtp_layers * layers_bytes(config, config.model.layer_kinds()[-1], 1, layouts)
    return result + layouts.is_last * mtp


def layers_at_once(config: TrainingConfig, layouts: Layouts) -> Array | int:
    """Layers that full recomputation runs again from one kept input: at most those of a rank's chunk."""
    every, model = config.recompute_every, config.model
    if config.policy.name != "full" or every == 1:
        return 1
    if model.num_encoder_layers:
        return min(every, max(model.num_encoder_layers, model.num_layers))
    spans = [chunk_span(model, layouts, chunk) for chunk in range(int(np.max(layouts.virtual_stages)))]
    longest = np.max([end - begin for begin, end in spans], axis=0)
    return np.clip(longest, 1, every)


def layers_bytes(config: TrainingConfig, kind: str, layers: Array | int, layouts: Layouts) -> Array:
    """Saved bytes of ``layers`` layers of a kind for one micro-batch under the recompute policy."""
    model, how, numbers = config.model, config.how, config.numbers
    dropped = per_token(model, kind, config.policy, how, numbers).on(layouts)
    dropped = dropped / layers_at_once(config, layouts)
    if not config.recompute_layers or config.policy.name == "none":
        return layers * dropped
    some = np.minimum(layers, config.recompute_layers)
    return some * dropped + (layers - some) * per_token(
        model, kind, replace(config.policy, name="none"), how, numbers
    ).on(layouts)


def boundary_bytes(config: TrainingConfig, layouts: Layouts) -> Array:
    """Inputs and outputs of a pipeline stage that the schedule holds: one set for each virtual stage."""
    tensor = layouts.tokens * config.model.hidden_size * config.numbers.compute / layouts.along
    return np.where(layouts.pipeline > 1, config.how.boundary_tensors * layouts.virtual_stages, 0) * tensor


def working_bytes(config: TrainingConfig, layouts: Layouts) -> Array:
    """Room that backward of one layer needs: gradients of its widest tensors, and what is recomputed."""
    model, how, numbers = config.model, config.how, config.numbers
    worst = np.zeros_like(layouts.tokens)
    for kind in config.kinds:
        everything = kept(model, kind, replace(config.policy, name="none"), how, numbers)
        wide = [t for t in everything if t.name.startswith("mlp ") or t.module == "core_attn"]
        room = total(wide).on(layouts) + layouts.tokens * model.hidden_size * numbers.compute / layouts.along
        if config.policy.name != "none":
            again = total(everything).on(layouts) - per_token(model, kind, config.policy, how, numbers).on(
                layouts
            )
            room = room + again * layers_at_once(config, layouts)
        if config.policy.quantized and not how.four_bit_inputs:
            room = room + max(map_.weights for map_ in model.linears(kind)) * numbers.compute
        worst = np.maximum(worst, room)
    return worst + gathered_keys(config, layouts)


def gathered_keys(config: TrainingConfig, layouts: Layouts) -> Array:
    """Keys and values of a layer that other context ranks hold, and their gradients, if they are gathered."""
    width = (config.model.kv_width + config.model.v_width) * config.numbers.compute / layouts.tensor
    others = layouts.tokens * (layouts.context - 1)
    return layouts.context_by("all_gather") * 2 * width * others
