"""DTensor plans beside one process, for our GPT and transformers' Llama: the loss and every gradient."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from workshop import report
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.tensor_plans import cut_by_plan

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",))
SHAPE = GPTConfig(96, 64, 2, 8, 4, 96)


def ours():
    return GPT(SHAPE)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
            intermediate_size=96, use_cache=False,
        )
    )  # fmt: skip


def loss_of(model, tokens, targets):
    out = model(tokens)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compare(build, sequence_parallel):
    torch.manual_seed(10 + rank)
    plain, cut = build(), build()
    for parameter in plain.parameters():
        dist.broadcast(parameter.data, 0)
    cut.load_state_dict(plain.state_dict())
    cut_by_plan(cut, mesh, sequence_parallel=sequence_parallel)
    torch.manual_seed(3)
    tokens, targets = torch.randint(96, (2, 2, 16))
    wanted, found = loss_of(plain, tokens, targets), loss_of(cut, tokens, targets)
    wanted.backward()
    found.backward()
    right, errors = dict(plain.named_parameters()), {}
    for name, parameter in cut.named_parameters():
        gradient = parameter.grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        errors[name] = ((gradient - right[name].grad).norm() / right[name].grad.norm()).item()
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in cut.parameters())
    return {"loss": abs(found - wanted).item(), "errors": errors, "held": held}


for name, build in (("gpt", ours), ("llama", llama)):
    for sequence_parallel in (False, True):
        report(**{f"{name} sequence={sequence_parallel}": compare(build, sequence_parallel)})


def complaint(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


square = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("shard", "tensor"))
report(
    axes=complaint(lambda: cut_by_plan(GPT(SHAPE), square)),
    heads=complaint(lambda: cut_by_plan(GPT(GPTConfig(96, 64, 2, 8, 1, 96)), mesh)),
)
dist.destroy_process_group()
