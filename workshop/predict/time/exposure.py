"""Communication around the layers: how much of it nothing hides. And what happens once a step.

Gradients can be reduced while the last micro-batch's backward runs; fully sharded parameters gathered while
the layer before computes; activations passed on while the next micro-batch does; offloaded tensors fetched
over the host's link before they are needed. What is hidden still takes a little: the kernels of collectives
occupy multiprocessors and memory bandwidth (`Rates.contention`), the more the faster they run.

**Offload**, by what lives on the host (Ren et al., "ZeRO-Offload", arXiv 2101.06840, section 4):

==============  =========================================================================================
optimizer       a step's gradients go down (hidden under the last backward), the host updates its copy at
                the rate of its own memory, new parameters come up
params          the same, and each micro-batch fetches a layer's weights forward and backward and sends its
                gradients down, each hidden under the layer that computes meanwhile
activations     what a layer saved goes down during forward and comes up during backward
==============  =========================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from workshop.facts.model import ModelSpec
from workshop.facts.precision import update_bytes
from workshop.predict.case import NotPredictable, Setting
from workshop.predict.layouts import Layouts
from workshop.predict.memory.activations import layers_bytes
from workshop.predict.time.layer import Costs, kind_shares, mean_layer_params

NEWTON_SCHULZ_STEPS = 5
"""Iterations of Muon's orthogonalization (github KellerJordan/Muon)."""
HIDDEN_COSTS = 0.2
"""What a stage waits for of a send that hides: its start, and what it takes from the kernels beside it.

Set by hand, as no table isolates it.
"""


class Params(NamedTuple):
    """Parameters on a rank before data-parallel sharding: plain ones, and experts."""

    plain: np.ndarray
    experts: np.ndarray

    @property
    def sum(self) -> np.ndarray:
        """Both."""
        return self.plain + self.experts


def layer_params(model: ModelSpec, layouts: Layouts) -> Params:
    """Parameters of an average layer on one rank."""
    plain, experts = mean_layer_params(model)
    return Params(plain / layouts.tensor, experts / (layouts.expert * layouts.expert_tensor))


def trained_layer_params(setting: Setting, layouts: Layouts) -> Params:
    """Those of them that have gradients: all, or the adapter's, divided as the memory model divides them."""
    if setting.adapter is None:
        return layer_params(setting.model, layouts)
    each = setting.adapter.params(setting.model) / setting.model.num_layers
    return Params(each / layouts.tensor, 0.0 * layouts.tensor)


def trained_params(setting: Setting, layouts: Layouts) -> Params:
    """Trained parameters of the fullest stage: its layers, and the tables at its ends."""
    model, layer = setting.model, trained_layer_params(setting, layouts)
    layers = np.ceil(model.num_layers / layouts.pipeline)
    tables = 1 if model.tied_embeddings else 2
    ends = model.vocab_size * model.hidden_size / layouts.tensor * np.where(layouts.pipeline == 1, tables, 1)
    ends = ends * (setting.adapter is None)
    return Params(layer.plain * layers + ends, layer.experts * layers)


def shards_weights(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Layouts whose ranks keep shards of the weights, and gather them."""
    return (layouts.zero == 3) | ((layouts.zero == 2) & setting.sharded_each_pass)


def reduced_once(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Of those the ones that sum gradients unsharded until the step's last micro-batch is through."""
    return shards_weights(setting, layouts) & setting.reduces_once & (layouts.pipeline > 1)


def gathers_each_pass(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Layouts whose weights are gathered for every micro-batch."""
    kept = (layouts.zero == 2) & reduced_once(setting, layouts)
    return shards_weights(setting, layouts) & ~kept & (layouts.state_shards > 1)


def sharded_exposure(
    setting: Setting, layouts: Layouts, passes: tuple[Costs, Costs]
) -> tuple[np.ndarray, np.ndarray]:
    """Per layer and micro-batch, what fully sharded parameters cost beyond what compute hides.

    ZeRO-2 keeps what it gathered until backward is through. Gradients are reduced in what the stack sends
    (`Software.gradient_bytes`), whatever they are kept in: torchtitan's config `mixed_precision_reduce` is
    float32, Megatron-Bridge's recipes set `grad_reduce_in_fp32` to false.
    """
    forward, backward = passes
    sharded = gathers_each_pass(setting, layouts)
    if not sharded.any():
        return np.zeros(len(layouts)), np.zeros(len(layouts))
    machine, model = setting.machine, setting.model
    held, trained = layer_params(model, layouts), trained_layer_params(setting, layouts)
    gather = over_shards("all_gather", held, setting.gathered_bytes, layouts, setting)
    scatter = over_shards("reduce_scatter", trained, setting.stack.gradient_bytes, layouts, setting)
    scatter = np.where(reduced_once(setting, layouts), 0.0, scatter)
    hidden = machine.rates.contention * machine.wires.load(layouts.state_shards, layouts.tensor)
    again = np.where(layouts.zero == 3, gather, 0.0)
    ahead, back = (
        np.maximum(work - window.seconds, 0) + hidden * np.minimum(work, window.seconds)
        for work, window in ((gather, forward), (again + scatter, backward))
    )
    # A backward that reshards nothing leaves the weights to the next micro-batch's forward.
    ahead = np.where(reduced_once(setting, layouts), 0.0, ahead)
    return np.where(sharded, ahead, 0.0), np.where(sharded, back, 0.0)


def over_shards(
    collective: str, params: Params, width: float, layouts: Layouts, setting: Setting
) -> np.ndarray:
    """Seconds of a gather or a reduction over the ranks that share out the state; experts have their own."""
    wires, apart = setting.machine.wires, layouts.expert * layouts.expert_tensor
    seconds = wires.seconds(collective, params.plain * width, layouts.state_shards, layouts.tensor)
    return seconds + wires.seconds(collective, params.experts * width, layouts.expert_shards, apart)


def pipeline_seconds(
    setting: Setting, layouts: Layouts, chunks: np.ndarray, windows: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Per micro-batch, passing activations on and gradients back, once for each of a rank's chunks.

    windows: a stage's forward and backward pass of a micro-batch. The ranks of a tensor group hold the same
    activations, so each sends its share over its own adapter, and they put the pieces together over the link
    ("scatter/gather", arXiv 2104.04473, section 4.1); with sequence parallelism the activations are cut
    already. Megatron-Core overlaps them with virtual stages alone: without, a stage waits
    (megatron/core/pipeline_parallel/schedules.py, `forward_backward_pipelining_without_interleaving`, refuses
    `overlap_p2p_comm`). What overlaps hides behind one chunk's pass, and is waited for if it takes longer.
    `Software.passes_rate` is for a fabric whose sends between nodes were timed: all wait for the slowest.
    """
    if layouts.pipeline.max() <= 1:
        return np.zeros(len(layouts))
    machine, stack = setting.machine, setting.stack
    whole = layouts.tokens * setting.model.hidden_size * machine.activation_bytes
    stride = layouts.world_size // layouts.pipeline
    across = stack.passes_rate or machine.wires.network
    rate = np.where(stride < machine.wires.per_node, machine.wires.link, across)
    gather = np.where(
        layouts.sequence_parallel, 0.0, machine.wires.seconds("all_gather", whole, layouts.tensor)
    )
    once = machine.wires.link_seconds + whole / layouts.tensor / rate + gather
    overlaps = stack.overlap_pipeline & (layouts.virtual_stages > 1)
    waited = [np.maximum(HIDDEN_COSTS * once, once - window / chunks) for window in windows]
    return np.where(layouts.pipeline > 1, chunks * np.where(overlaps, sum(waited), 2 * once), 0.0)


class Once(NamedTuple):
    """Seconds of what happens once a step: exposed communication, the optimizer, the host's link."""

    data: np.ndarray
    optimizer: np.ndarray
    offload: np.ndarray


def once_per_step(setting: Setting, layouts: Layouts, windows: tuple[np.ndarray, np.ndarray]) -> Once:
    """Exposed reduction of gradients and gathering of new parameters, and the optimizer's own time.

    windows: seconds of one micro-batch's forward and backward on a rank, under which they may hide:
    gradients are reduced while the last micro-batch runs backward, new parameters gathered while the first
    runs forward, unless the optimizer's step waits for them; both are longer where a rank has several chunks
    of layers (`chunk_windows`). Without ZeRO nothing is gathered: all of the all-reduce falls into backward.
    """
    windows = (windows[0] * chunk_windows(layouts), windows[1] * chunk_windows(layouts))
    machine, stack, trained = setting.machine, setting.stack, trained_params(setting, layouts)
    layers = np.ceil(setting.model.num_layers / layouts.pipeline)
    back = share_out("reduce_scatter", trained, stack.gradient_bytes, layouts, setting)
    width = np.where(layouts.zero >= 1, min(setting.gathered_bytes, 2.0), stack.gradient_bytes)
    ahead = share_out("all_gather", trained, width, layouts, setting)
    exposed = back + ahead
    if stack.overlap_gradients:
        load = machine.rates.contention * machine.wires.load(layouts.data * layouts.context, layouts.tensor)
        shared = layouts.zero >= 1
        late = _unhidden(np.where(shared, back, back + ahead), windows[1], layers, load)
        soon = ahead if stack.gathers_at_once else _unhidden(ahead, windows[0], layers, load)
        exposed = late + np.where(shared, soon, 0.0)
    # Fully sharded layers were reduced as they went; what is left is the replicas' all-reduce of hybrid
    # sharding.
    outer = machine.wires.seconds(
        "all_reduce",
        trained.sum / layouts.shard * stack.gradient_bytes,
        layouts.replicate,
        layouts.tensor * layouts.context * layouts.shard,
    )
    hybrid = np.maximum(outer - windows[1], outer / np.maximum(layers, 1))
    exposed = np.where(shards_weights(setting, layouts), hybrid, exposed)
    once = reduced_once(setting, layouts)
    exposed = np.where(once, outer + whole_stage_seconds(setting, layouts, windows[0], layers), exposed)
    owned = np.where(layouts.zero >= 1, trained.plain / layouts.state_shards, trained.plain)
    owned = owned + np.where(layouts.zero >= 1, trained.experts / layouts.expert_shards, trained.experts)
    if setting.optimizer == "muon":  # needs whole matrices: gathers once more (Liu et al., arXiv 2502.16982)
        exposed = exposed + np.where(layouts.zero >= 1, ahead, 0.0)
    bytes_moved = update_bytes(setting.optimizer, setting.trained_precision) * owned
    if setting.offload in ("optimizer", "params"):
        return Once(exposed, *_on_the_host(setting, owned, bytes_moved, windows[1]))
    share = owned / np.maximum(trained.sum, 1.0)
    streamed = bytes_moved / (machine.memory_bandwidth * machine.rates.memory)
    optimizer = streamed + share * orthogonal_seconds(setting, layouts)
    return Once(exposed, optimizer, np.zeros(len(layouts)))


def whole_stage_seconds(
    setting: Setting, layouts: Layouts, window: np.ndarray, layers: np.ndarray
) -> np.ndarray:
    """Seconds of FSDP2 where it reduces once a step: no backward is left for gradients to hide behind.

    At stage 2 weights are gathered once as well, while the first micro-batch runs forward.
    """
    if not (setting.reduces_once and np.any(reduced_once(setting, layouts))):
        return np.zeros(len(layouts))
    trained, held = trained_params(setting, layouts), trained_params(replace(setting, adapter=None), layouts)
    gather = over_shards("all_gather", held, setting.gathered_bytes, layouts, setting)
    scatter = over_shards("reduce_scatter", trained, setting.stack.gradient_bytes, layouts, setting)
    return scatter + (layouts.zero == 2) * _unhidden(gather, window, layers, np.zeros(len(layouts)))


def chunk_windows(layouts: Layouts) -> np.ndarray:
    """How many micro-batches' backward goes on after the first gradients are complete.

    With virtual stages micro-batches pass a rank's v chunks in groups of p (Narayanan et al., arXiv
    2104.04473, section 2.2). So the first chunk is through while the last group has v - 1 chunks before it,
    and a chunk's new parameters may come while the first group passes those before it: p (v - 1) / v
    micro-batches, and of the last chunk one. Megatron-Core's buckets belong to one chunk each, which is sent
    as it is ready (megatron/core/distributed/distributed_data_parallel.py).
    """
    v, group = layouts.virtual_stages, np.minimum(layouts.pipeline, layouts.accumulation)
    return np.maximum(group * (v - 1) / v + 1 / v, 1.0)


def share_out(collective: str, params: Params, width: Any, layouts: Layouts, setting: Setting) -> np.ndarray:
    """Seconds of half an all-reduce of a rank's parameters over those who hold the same: experts have fewer
    copies.
    """
    wires = setting.machine.wires
    seconds = wires.seconds(collective, params.plain * width, layouts.data * layouts.context, layouts.tensor)
    if not np.any(params.experts):
        return seconds
    apart = layouts.expert * layouts.expert_tensor
    return seconds + wires.seconds(collective, params.experts * width, layouts.expert_copies, apart)


def _unhidden(work: np.ndarray, window: np.ndarray, layers: np.ndarray, contention: np.ndarray) -> np.ndarray:
    """What sticks out of a window: at least one layer's share, and a little of what is hidden."""
    return np.maximum(work - window, work / np.maximum(layers, 1)) + contention * np.minimum(work, window)


@cache
def orthogonal_flops(model: ModelSpec) -> tuple[float, float]:
    """FLOPs of Muon's update of an average layer: its plain matrices, and its experts.

    Five Newton-Schulz steps of a matrix of m rows and n columns, m <= n: X X^T, its square, and their product
    with X, so 5 (4 m^2 n + 2 m^3).
    """
    sums = [0.0, 0.0]
    for kind, share in kind_shares(model):
        for x in model.linears(kind):
            m, n = sorted((x.inputs, x.outputs))
            each = NEWTON_SCHULZ_STEPS * (4.0 * m * m * n + 2.0 * m**3)
            sums[x.copies > 1] += share * x.copies * each
    return sums[0], sums[1]


def orthogonal_seconds(setting: Setting, layouts: Layouts) -> Any:
    """Seconds of Muon's products for all matrices of a rank before they are shared out; else none."""
    if setting.optimizer != "muon":
        return 0.0
    plain, experts = orthogonal_flops(setting.model)
    layers = np.ceil(setting.model.num_layers / layouts.pipeline)
    flops = layers * (plain / layouts.tensor + experts / (layouts.expert * layouts.expert_tensor))
    return flops / setting.machine.attention


def _host_link(setting: Setting) -> float:
    """Bytes/s between a device and its host, one way."""
    rate = setting.machine.rates.host_link
    if not rate:
        raise NotPredictable(
            f"offload of {setting.offload}: the link between {setting.cluster.device.name} and its host is "
            "not known; give Rates.host_link and host_memory (bytes/s of one device)"
        )
    return rate


def _on_the_host(
    setting: Setting, owned: np.ndarray, bytes_moved: np.ndarray, window: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the host's update, and of its link, which gradients share with the backward pass."""
    rate, numbers = _host_link(setting), setting.trained_precision
    update = bytes_moved / setting.machine.rates.host_memory
    down = np.maximum(owned * numbers.grads / rate - window, 0.0)
    up = owned * numbers.params / rate if setting.offload == "optimizer" else 0.0
    return update, down + up


def offload_exposure(setting: Setting, layouts: Layouts, passes: tuple[Costs, Costs]) -> np.ndarray:
    """Seconds per layer and micro-batch that the host's link takes longer than the layer computes."""
    if setting.offload not in ("params", "activations"):
        return np.zeros(len(layouts))
    rate = _host_link(setting)
    if setting.offload == "params":
        shards = np.where(layouts.zero == 3, layouts.state_shards, 1)
        experts = np.where(layouts.zero == 3, layouts.expert_shards, 1)
        held, trained = layer_params(setting.model, layouts), trained_layer_params(setting, layouts)
        ahead = (held.plain / shards + held.experts / experts) * setting.gathered_bytes
        back = ahead, (trained.plain / shards + trained.experts / experts) * setting.precision.grads
    else:
        ahead = saved_layer_bytes(setting, layouts)
        back = ahead, 0.0 * ahead
    # The link has two ways: weights or activations come up while gradients go down.
    windows = [costs.seconds for costs in passes]
    return np.maximum(ahead / rate - windows[0], 0.0) + np.maximum(np.maximum(*back) / rate - windows[1], 0.0)


def saved_layer_bytes(setting: Setting, layouts: Layouts) -> np.ndarray:
    """Bytes that an average layer saves for one micro-batch, as the memory model counts them."""
    assert setting.config is not None, "offloaded activations need the setting's config (case.setting_of)"
    kinds = kind_shares(setting.model)
    return np.asarray(sum(share * layers_bytes(setting.config, kind, 1, layouts) for kind, share in kinds))
