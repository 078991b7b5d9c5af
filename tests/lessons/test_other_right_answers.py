"""A check judges what a function does, not how it is written: other right answers pass too."""

import pytest

from workshop.lessons import find
from workshop.lessons.judge import judge

OTHERS = {
    "who_am_i": """
def my_share(items, rank, world_size):
    return [item for place, item in enumerate(items) if place % world_size == rank]
""",
    "ring_bytes": """
from fractions import Fraction
def ring_bytes(num_bytes, world_size):
    return 2 * num_bytes * (1 - Fraction(1, world_size))
""",
    "alpha_beta": """
import numpy as np
def fit(message_bytes, seconds):
    slope, start = np.polyfit(message_bytes, seconds, 1, w=1 / seconds)
    return np.array([start, 1 / slope])
""",
    "ddp_bytes": """
def ddp_bytes(num_parameters, bytes_per_value=4, bucket_view=True):
    return sum([num_parameters * bytes_per_value] * (5 - bucket_view))
""",
    "largest_under_cap": """
def largest_under_cap(cap_bytes, parameters):
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ddp_bytes(parameters(64 * middle)) <= cap_bytes else (low, middle)
    return 64 * low
""",
    "average_gradients": """
import torch
import torch.distributed as dist

def average_gradients(model):
    used = [p for p in model.parameters() if p.grad is not None]
    together = torch.cat([p.grad.flatten() for p in used])  # one bucket
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for p, part in zip(used, together.split([p.numel() for p in used])):
        p.grad.copy_(part.view_as(p))
""",
    "ring_all_reduce": """
import torch
from torch.distributed import P2POp, batch_isend_irecv, get_rank, get_world_size, irecv, isend

def swap(sent, received):
    rank, world_size = get_rank(), get_world_size()
    for work in batch_isend_irecv([
        P2POp(irecv, received, (rank - 1) % world_size),
        P2POp(isend, sent, (rank + 1) % world_size),
    ]):
        work.wait()

@torch.no_grad()
def ring_all_reduce(tensor):
    rank, world_size = get_rank(), get_world_size()
    chunks = tensor.chunk(world_size)
    received = torch.empty_like(chunks[0])
    for step in range(world_size - 1):
        swap(chunks[(rank - step) % world_size], received)
        chunks[(rank - step - 1) % world_size].add_(received)
    for step in range(world_size - 1):
        swap(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])
""",
    "begin_alike": """
import torch
import torch.distributed as dist

@torch.no_grad()
def begin_alike(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
""",
    "overlapped_average": """
from torch.distributed import ReduceOp, all_reduce, get_world_size

def overlapped_average(model):
    works = {}

    def hook(p):
        p.grad /= get_world_size()
        works[p] = all_reduce(p.grad, op=ReduceOp.SUM, async_op=True)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)

    def finish():
        while works:
            works.popitem()[1].wait()

    return finish
""",
    "send_with_memory": """
def send_with_memory(gradient, memory, compress):
    memory += gradient
    sent = compress(memory)
    memory -= sent
    return sent
""",
    "outer_step": """
import torch
import torch.distributed as dist

def outer_step(anchor, weights, momentum, lr=0.7, beta=0.9):
    start = torch.nn.Parameter(anchor.clone())
    optimizer = torch.optim.SGD([start], lr=lr, momentum=beta, nesterov=True)
    optimizer.state[start]["momentum_buffer"] = momentum.clone()
    moved = (anchor - weights) / dist.get_world_size()
    dist.all_reduce(moved)
    start.grad = moved
    optimizer.step()
    momentum.copy_(optimizer.state[start]["momentum_buffer"])
    anchor.copy_(start.detach())
    weights.copy_(anchor)
""",
    "zero_bytes": """
def zero_bytes(num_parameters, ranks, stage, optimizer_bytes=12):
    cut = [optimizer_bytes, 2, 2]  # in the order in which the stages cut them
    return num_parameters * (sum(cut[:stage]) / ranks + sum(cut[stage:]))
""",
    "zero_step": """
import torch
import torch.distributed as dist

def zero_step(weights, gradient, update):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    length = len(weights) // world_size
    for owner in range(world_size):  # a reduce to each owner, and a broadcast from it
        part = slice(owner * length, (owner + 1) * length)
        dist.reduce(gradient[part], owner)
    mine = slice(rank * length, (rank + 1) * length)
    update(weights[mine], gradient[mine] / world_size)
    for owner in range(world_size):
        dist.broadcast(weights[owner * length : (owner + 1) * length], owner)
""",
    "is_unit": """
from workshop.models.gpt import Layer

def is_unit(module):
    return isinstance(module, Layer)
""",
    "least_traffic": """
def least_traffic(choices, cap_bytes):
    best = None
    for choice in choices:
        better = best is None or (choice[2], choice[1]) < (best[2], best[1])
        if choice[1] <= cap_bytes and better:
            best = choice
    return best and best[0]
""",
    "train_flops": """
def train_flops(num_params, num_tokens, num_layers, hidden_size, seq_len):
    forward = 2 * num_params + 4 * num_layers * seq_len * hidden_size
    return 3 * forward * num_tokens
""",
    "days_to_train": """
def days_to_train(flops, num_devices, peak_flops_per_second, mfu):
    from datetime import timedelta
    return timedelta(seconds=flops / num_devices / peak_flops_per_second / mfu) / timedelta(days=1)
""",
    "mfu": """
def mfu(tokens_per_second, flops_per_token, num_devices, peak_flops_per_second):
    seconds_per_token = flops_per_token / peak_flops_per_second
    return tokens_per_second / num_devices * seconds_per_token
""",
    "step_bytes": """
def step_bytes(num_params, value_bytes=4, num_moments=2):
    return sum([num_params * value_bytes] * 2 + [num_params * 4] * (num_moments + (value_bytes != 4)))
""",
    "activation_bytes": """
def activation_bytes(seq_len, micro_batch, hidden_size, num_heads, recompute="none"):
    if recompute == "full":
        return 2 * seq_len * micro_batch * hidden_size
    core = 5 * num_heads * seq_len**2 * micro_batch if recompute == "none" else 0
    return 34 * seq_len * micro_batch * hidden_size + core
""",
    "largest_micro_batch": """
def largest_micro_batch(memory_bytes, state_bytes, layer_bytes, num_layers):
    sequences = 0
    while state_bytes + (sequences + 1) * num_layers * layer_bytes <= memory_bytes:
        sequences += 1
    return sequences
""",
    "gpus_of_layout": """
import math
def gpus_of_layout(tensor=1, pipeline=1, data=1, context=1, **on_the_same_ranks):
    return math.prod([tensor, pipeline, data, context])
""",
    "choose_axes": """
import math
def choose_axes(gpus, gpus_per_node, pieces):
    stages = math.ceil(pieces / gpus_per_node)
    inside = min(gpus_per_node, pieces)
    return [inside, stages, gpus // stages // inside]
""",
    "columns_first": """
import numpy as np
def columns_first(x, a, b, ranks):
    columns = np.arange(a.shape[1]) % ranks
    return tuple(np.where(x @ a[:, columns == r] > 0, x @ a[:, columns == r], 0) @ b[columns == r] for r in range(ranks))
""",
    "row_parallel_backward": """
import torch
import torch.distributed as dist
def row_parallel_backward(gradient_y, h, b):
    with torch.enable_grad():
        h, b = h.detach().requires_grad_(), b.detach().requires_grad_()
        return torch.autograd.grad(h @ b, (h, b), gradient_y)
def column_parallel_backward(gradient_z, x, a):
    parts = [torch.empty(x.shape) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.einsum("bz,xz->bx", gradient_z, a))
    return sum(parts), torch.einsum("bx,bz->xz", x, gradient_z)
""",
    "one_f_one_b_order": """
def one_f_one_b_order(rank, ranks, micro_batches):
    order, started, returned = [], 0, 0
    while returned < micro_batches:
        if started < micro_batches and started - returned < ranks - rank:
            order.append(f"F{started}")
            started += 1
        else:
            order.append(f"B{returned}")
            returned += 1
    return tuple(order)
""",
    "balance_bias": """
import numpy as np
def balance_bias(bias, counts, rate):
    return np.array([
        b + (rate if c * len(counts) < counts.sum() else -rate if c * len(counts) > counts.sum() else 0)
        for b, c in zip(bias, counts)
    ])
""",
    "bubble_share": """
def bubble_share(stages, micro_batches, chunks=1):
    return 1 - chunks * micro_batches / (chunks * micro_batches + stages - 1)
""",
    "wrong_settings": """
def wrong_settings():
    named = "use_cpu fsdp_config.fsdp_auto_wrap_policy num_machines deepspeed_config.zero3_save_16bit_model"
    named += " nothing fsdp_reshard_after_forward"
    return dict(zip("abcdef", named.split()))
""",
    "fsdp_file": """
def fsdp_file(num_nodes, gpus_per_node, layer):
    fsdp = dict(version="2", reshard_after_forward="true", auto_wrap_policy="transformer_based_wrap")
    fsdp["transformer_layer_cls_to_wrap"] = layer
    return {
        "distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": fsdp,
        "num_machines": num_nodes, "num_processes": gpus_per_node * num_nodes,
    }
""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_it_passes(name):
    verdict = judge(find(name), OTHERS[name], {})
    assert verdict.state == "right", verdict.message
