"""Which layouts a planner looks at, and a first look at which of them fit.

Candidates are all combinations of

    tensor      divisors of a node that divide the heads (and the key-value heads, or are divided by them)
    pipeline    every number of stages up to the layers; virtual stages where the layers divide, or would
                with embedding and head counted as one each (then the first and the last chunk are shorter)
    context     1, and more only for sequences that need it
    expert      divisors of the experts
    data        the largest divisors of the global batch for which devices are left
    micro-batch powers of two, recomputation none / selective / full, ZeRO 1 or 3

A layout need not use every device: 5,128 = 8 x 641 has no useful divisors, and MT-NLG ran on 280 x 18 =
5,040.

**Memory** here is the planner's first look, in closed form over columns: state by precision recipe and ZeRO
stage, and saved activations after Korthikanti et al. (arXiv 2205.05198, equations 1 to 6): per layer and
micro-batch s b h (10/t + 24/t) with sequence parallelism, s b h (10 + 24/t) without, 5 a s^2 b / t more if
scores are kept, 2 s b h under full recomputation, times the micro-batches in flight. What is then proposed
is checked by `memory.predict_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from workshop.facts.checks import divisors
from workshop.facts.device import ClusterSpec
from workshop.facts.model import ModelSpec
from workshop.facts.precision import Precision
from workshop.predict.exposure import layer_params
from workshop.predict.grid import Grid
from workshop.predict.rates import Software

MICRO_BATCHES = (1, 2, 4, 8)
VIRTUAL = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Limits:
    """What a search may use: whole axes, or fixed ones (an axis with one value)."""

    tensor: tuple[int, ...] = ()
    pipeline: tuple[int, ...] = ()
    context: tuple[int, ...] = (1,)
    expert: tuple[int, ...] = ()
    micro_batch: tuple[int, ...] = MICRO_BATCHES
    virtual_stages: tuple[int, ...] = VIRTUAL
    recompute: tuple[int, ...] = (0, 1, 2)
    zero: tuple[int, ...] = (1, 3)


def candidates(
    model: ModelSpec, cluster: ClusterSpec, global_batch: int, seq_len: int, limits: Limits
) -> Grid:
    """All layouts within the limits that could run; memory not yet looked at."""
    tensor = limits.tensor or tensor_sizes(model, cluster)
    pipeline = limits.pipeline or tuple(range(1, min(model.num_layers, cluster.num_devices) + 1))
    expert = limits.expert or (
        tuple(e for e in divisors(model.num_experts) if e <= 64) if model.is_moe else (1,)
    )
    context = tuple(c for c in limits.context if seq_len % (2 * c) == 0 or c == 1)
    sizes = (limits.micro_batch, limits.virtual_stages, limits.recompute, limits.zero, (0, 1, 2))
    t, p, c, e, b, v, r, z, choice = _combined(tensor, pipeline, context, expert, *sizes)
    data = data_sizes(global_batch, cluster.num_devices // (t * p * c), b, choice)
    per = np.maximum(data, 1) * b
    keep = (data > 0) & (p * v <= model.num_layers) & ((v == 1) | ((p > 1) & (global_batch // per % p == 0)))
    keep &= ((data * c * t) % e == 0) & ((z != 3) | (p == 1))
    even, shorter_ends = model.num_layers % (p * v) == 0, (model.num_layers + 2) % (p * v) == 0
    keep &= (v == 1) | even | shorter_ends
    t, p, c, e, b, v, r, z, data, per = (x[keep] for x in (t, p, c, e, b, v, r, z, data, per))
    ends = np.where((shorter_ends & ~even)[keep] & (p > 1), (model.num_layers + 2) // (p * v) - 1, -1)
    return Grid.of_columns(
        shard=data,
        zero=z,
        tensor=t,
        sequence_parallel=(t > 1).astype(int),
        pipeline=p,
        virtual_stages=v,
        context=c,
        expert=e,
        expert_tensor=np.where(e > 1, 1, t) if model.is_moe else 1,
        recompute=r,
        micro_batch=b,
        accumulation=global_batch // per,
        first_layers=ends,
        last_layers=ends,
    )


def _combined(*axes: tuple[int, ...]) -> list[np.ndarray]:
    """Every combination of the axes, one column each."""
    mesh = np.unravel_index(np.arange(prod(map(len, axes))), tuple(map(len, axes)))
    return [np.asarray(axis)[index] for axis, index in zip(axes, mesh, strict=True)]


def tensor_sizes(model: ModelSpec, cluster: ClusterSpec) -> tuple[int, ...]:
    """Degrees of tensor parallelism within a node (at most 8) that cut whole heads."""
    sizes = [t for t in divisors(cluster.devices_per_node) if t <= 8 and model.num_heads % t == 0]
    return tuple(
        t for t in sizes if model.is_mla or model.num_kv_heads % t == 0 or t % model.num_kv_heads == 0
    )


def data_sizes(
    global_batch: int, room: np.ndarray, micro_batch: np.ndarray, choice: np.ndarray
) -> np.ndarray:
    """The largest (choice 0), second and third largest data-parallel degree that fits; 0 where there is
    none.
    """
    result = np.zeros(len(room), np.int64)
    for b in np.unique(micro_batch):
        good = np.array(divisors(global_batch // b)) if global_batch % b == 0 else np.array([], int)
        mine = micro_batch == b
        index = np.searchsorted(good, room[mine], side="right") - 1 - choice[mine]
        result[mine] = np.where(index >= 0, good[np.maximum(index, 0)], 0) if len(good) else 0
    return result


def memory_guess(
    model: ModelSpec, grid: Grid, seq_len: int, precision: Precision, stack: Software
) -> np.ndarray:
    """Bytes on the fullest rank, to within a tenth or so: state plus saved activations plus logits."""
    plain, experts = layer_params(model, grid)
    layers = np.ceil(model.num_layers / grid.pipeline)
    ends = model.vocab_size * model.hidden_size / grid.tensor
    params = (plain + experts) * layers + ends * np.where(
        (grid.pipeline == 1) & (not model.tied_embeddings), 2, 1
    )
    kept = precision.params + precision.grads
    state = precision.master + 2 * precision.moments
    bytes_each = np.where(
        grid.zero == 3,
        (kept + state) / grid.shard,
        kept + np.where(grid.zero >= 1, state / grid.shard, state),
    )
    gathered = 4 * (plain + experts) * (grid.zero == 3)
    return params * bytes_each + gathered + saved_guess(model, grid, seq_len, stack)


def saved_guess(model: ModelSpec, grid: Grid, seq_len: int, stack: Software) -> np.ndarray:
    """Saved activations of the micro-batches in flight, a layer's working set, and logits where there are
    any.
    """
    layers = np.ceil(model.num_layers / grid.pipeline)
    tokens = grid.micro_batch * seq_len / grid.context
    whole = np.where(grid.sequence_parallel > 0, grid.tensor, 1)
    widths = (
        model.ffn_hidden_size * (3 if model.gated_mlp else 2)
        if not model.is_moe
        else 3 * model.moe_ffn_hidden_size * model.experts_per_token
    ) + 3 * model.q_width
    full = tokens * (10 * model.hidden_size / whole + 2 * widths / grid.tensor)
    scores = 5 * model.num_heads * seq_len * tokens / grid.tensor if stack.attention == "unfused" else 0.0
    kept_by = [full + scores, full, 2 * tokens * model.hidden_size / whole]
    saved = np.select([grid.recompute == 0, grid.recompute == 1], kept_by[:2], kept_by[2])
    flight = np.minimum(
        grid.pipeline
        * (1 + (grid.virtual_stages > 1) * (grid.pipeline - 1) / (grid.pipeline * grid.virtual_stages)),
        grid.accumulation,
    )
    working = np.where(grid.recompute == 2, full, 0.0)
    logits = np.where(grid.pipeline == 1, 6 * tokens * model.vocab_size / grid.tensor, 0.0)
    return saved * layers * flight + working + logits
