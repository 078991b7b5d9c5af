"""Which layouts a planner looks at, and what each needs.

Candidates are all combinations of

    tensor      divisors of a node that divide the heads (and the key-value heads, or are divided by them)
    pipeline    every number of stages that divides the layers (or would with embedding and head counted as
                one each); of the others the fewest for each number of layers on the fullest stage, since
                more stages would have as many there; virtual stages where the layers divide, or would
                with embedding and head counted as one each (then the first and the last chunk are shorter)
    context     1, and more only for sequences that need it
    expert      divisors of the experts
    data        the largest divisors of the global batch for which devices are left
    micro-batch powers of two, recomputation none / selective / full, ZeRO 1 or 3

A layout need not use every device: 5,128 = 8 x 641 has no useful divisors, and MT-NLG ran on 280 x 18 =
5,040.

**Memory** is that of `memory.predict_memory`, in its array form: the fullest of the stages that can be it. A
layout fits if the upper end of the memory model's interval does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from workshop.facts.checks import divisors
from workshop.facts.device import ClusterSpec
from workshop.facts.implementation import Implementation
from workshop.facts.model import ModelSpec
from workshop.predict.case import Policy, Setting, TrainingConfig
from workshop.predict.interval import memory_margins, model_doubts
from workshop.predict.layouts import RECOMPUTE, Layouts
from workshop.predict.memory.allocator import rank_hardware
from workshop.predict.memory.peaks import device_bytes

MICRO_BATCHES = (1, 2, 4, 8)
VIRTUAL = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class SearchSpace:
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
    model: ModelSpec, cluster: ClusterSpec, global_batch: int, seq_len: int, space: SearchSpace
) -> Layouts:
    """All layouts of the space that could run; memory not yet looked at."""
    tensor = space.tensor or tensor_sizes(model, cluster)
    pipeline = space.pipeline or pipeline_sizes(model.num_layers, cluster.num_devices)
    expert = space.expert or (
        tuple(e for e in divisors(model.num_experts) if e <= 64) if model.is_moe else (1,)
    )
    context = tuple(c for c in space.context if seq_len % (2 * c) == 0 or c == 1)
    sizes = (space.micro_batch, space.virtual_stages, space.recompute, space.zero, (0, 1, 2))
    t, p, c, e, b, v, r, z, choice = _combined(tensor, pipeline, context, expert, *sizes)
    data = data_sizes(global_batch, cluster.num_devices // (t * p * c), b, choice)
    per = np.maximum(data, 1) * b
    keep = (data > 0) & (p * v <= model.num_layers) & ((v == 1) | ((p > 1) & (global_batch // per % p == 0)))
    keep &= ((data * c * t) % e == 0) & ((z != 3) | (p == 1))
    even, shorter_ends = model.num_layers % (p * v) == 0, (model.num_layers + 2) % (p * v) == 0
    keep &= (v == 1) | even | shorter_ends
    keep &= seq_len // c % t == 0  # sequence parallelism cuts what a context rank has
    t, p, c, e, b, v, r, z, data, per = (x[keep] for x in (t, p, c, e, b, v, r, z, data, per))
    ends = np.where((shorter_ends & ~even)[keep] & (p > 1), (model.num_layers + 2) // (p * v) - 1, -1)
    return Layouts.of_columns(
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
        seq_len=seq_len,
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


def pipeline_sizes(num_layers: int, devices: int) -> tuple[int, ...]:
    """Numbers of stages worth a look: even ones, and of the uneven the fewest for each fullest stage.

    105 layers on 53 stages are two on the fullest, and so they are on 54 to 104: more devices, a longer
    bubble, and no stage is done sooner.
    """
    fewest = {-(-num_layers // p): p for p in range(num_layers, 0, -1)}
    return tuple(
        p
        for p in range(1, min(num_layers, devices) + 1)
        if num_layers % p == 0 or (num_layers + 2) % p == 0 or fewest[-(-num_layers // p)] == p
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


def upper_bytes(setting: Setting, layouts: Layouts, how: Implementation) -> np.ndarray:
    """p90 over predicted device bytes, of each layout: wider where there are stages."""
    of_model = model_doubts(setting.model, setting.precision, setting.adapter)
    plain, piped = (memory_margins(of_model, how.name, pipeline)[1].upper for pipeline in (False, True))
    return np.where(layouts.pipeline > 1, piped, plain)


def fullest_bytes(setting: Setting, layouts: Layouts, how: Implementation) -> np.ndarray:
    """Device bytes of the fullest rank of every layout: `memory.device_bytes` of the first stage (embedding,
    and most micro-batches in flight), the second (which may have a layer more) and the last (logits).

    how: the library whose kernels decide what is kept. What the allocator would give back to a full device is
    counted.
    """
    fullest = np.zeros(len(layouts))
    hardware = rank_hardware(setting.cluster, how, setting.cluster.num_devices)._replace(capacity=0)
    for index in np.unique(layouts.recompute):
        mine = np.flatnonzero(layouts.recompute == index)
        policy = Policy(RECOMPUTE[index], setting.recompute_modules)
        config = TrainingConfig(setting.model, how, setting.precision, policy, optimizer=setting.optimizer)
        some = layouts.take(mine)
        for stage in (0 * some.pipeline, np.minimum(1, some.pipeline - 1), some.pipeline - 1):
            here = device_bytes(config, replace(some, stage=stage), hardware)
            fullest[mine] = np.maximum(fullest[mine], here)
    return fullest
