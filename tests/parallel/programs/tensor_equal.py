"""Tensor parallelism by hand beside one process: the loss and every gradient, and what was sent."""

import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.tensor import cut_tensor
from workshop.parallel.tensor_collectives import all_gather

SHAPE = {
    "vocab_size": 96, "hidden_size": 64, "num_layers": 2, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 96,
}  # fmt: skip
ROWS = ("o_proj.weight", "down_proj.weight")

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()


def together(model):
    """Rank 0's weights for all: ranks are seeded differently."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def whole_gradient(name, parameter):
    """The gradient of the uncut parameter, from the ranks' parts."""
    if "norm" in name:
        return parameter.grad
    return all_gather(parameter.grad, 1 if name.endswith(ROWS) else 0, None)


def uncut_name(name):
    return name.replace("decoder.", "model.").replace(".inner.", ".")


def compare(tied, sequence_parallel):
    torch.manual_seed(10 + rank)
    plain = together(GPT(GPTConfig(**SHAPE, tied=tied)))
    cut = GPT(plain.config)
    cut.load_state_dict(plain.state_dict())
    cut = cut_tensor(cut, sequence_parallel=sequence_parallel)
    torch.manual_seed(3)
    tokens, targets = torch.randint(96, (2, 2, 16))
    loss = plain(tokens, targets)
    loss.backward()
    with measure(memory=False) as measured:
        ours = cut(tokens, targets)
        ours.backward()
    logits = all_gather(cut(tokens).detach(), 2, None)
    wanted = dict(plain.named_parameters())
    found = {uncut_name(name): whole_gradient(name, p) for name, p in cut.named_parameters()}
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    return {
        "loss": abs(ours - loss).item(),
        "logits": (logits - plain(tokens)).abs().max().item(),
        "gradients": {
            name: ((found[name] - p.grad).norm() / p.grad.norm()).item() for name, p in wanted.items()
        },
        "calls": {row.name: row.count for row in measured.traffic},
        "params": sum(p.numel() for p in cut.parameters()),
    }


for tied in (False, True):
    for sequence_parallel in (False, True):
        report(**{f"tied={tied} sequence={sequence_parallel}": compare(tied, sequence_parallel)})


def complaint(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


odd = GPTConfig(**{**SHAPE, "num_kv_heads": 1})
report(
    heads=complaint(lambda: cut_tensor(GPT(odd))),
    words=complaint(lambda: cut_tensor(GPT(GPTConfig(**{**SHAPE, "vocab_size": 97})))),
    positions=complaint(
        lambda: cut_tensor(GPT(GPTConfig(**SHAPE)), sequence_parallel=True)(
            torch.zeros(1, 15, dtype=torch.long)
        )
    ),
)
dist.destroy_process_group()
