"""A GPT with its sequence cut over ranks beside one process: the loss, every gradient, what each says and sends."""

import torch
import torch.distributed as dist

from workshop import report
from workshop.measure import measure
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.context_gpt import context_attention, cut_context, cut_sequence
from workshop.parallel.tensor import cut_tensor

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 48,
}  # fmt: skip
SEQ_LEN = 32

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()


def together(model):
    """Rank 0's weights for all: ranks are seeded differently."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def compare(method, order, *, group=None, recompute=False, **shape):
    torch.manual_seed(10 + rank)
    plain = together(GPT(GPTConfig(**{**SHAPE, **shape})))
    torch.manual_seed(20 + rank)
    cut = GPT(plain.config)
    cut.load_state_dict(plain.state_dict())
    names = list(cut.state_dict())
    cut = cut_context(cut, group, method=method, order=order)
    cut.model.recompute = recompute
    torch.manual_seed(3)
    tokens, targets = torch.randint(64, (2, 2, SEQ_LEN))
    loss = plain(tokens, targets)
    loss.backward()
    mine = cut_sequence(tokens, targets, group=group, method=method, order=order)
    with measure(memory=False) as measured:
        ours = cut(*mine)
        ours.backward()
    values = [ours.detach(), *(p.grad for p in cut.parameters())]
    for value in values:
        dist.all_reduce(value, group=group)
        value /= dist.get_world_size(group)
    gradients = {
        name: ((p.grad - wanted.grad).norm() / wanted.grad.norm()).item()
        for (name, p), wanted in zip(cut.named_parameters(), plain.parameters(), strict=True)
    }
    return {
        "loss": abs(values[0] - loss).item(),
        "gradients": gradients,
        "same_names": list(cut.state_dict()) == names,
        "wire": {row.name: row.wire_bytes for row in measured.traffic},
    }


def with_tensor(context, tensor):
    """Matrices cut over one pair of ranks, the sequence over the other: the loss, and gradients by parts."""
    torch.manual_seed(10 + rank)
    plain = together(GPT(GPTConfig(**SHAPE)))
    torch.manual_seed(3)
    tokens, targets = torch.randint(64, (2, 2, SEQ_LEN))
    loss = plain(tokens, targets)
    loss.backward()
    errors = {}
    for method in ("ring", "ulysses"):
        cut = GPT(plain.config)
        cut.load_state_dict(plain.state_dict())
        cut = cut_context(cut_tensor(cut, tensor), context, method=method)
        ours = cut(*cut_sequence(tokens, targets, group=context, method=method))
        ours.backward()
        ours = ours.detach()
        dist.all_reduce(ours, group=context)
        errors[method, "loss"] = abs(ours / 2 - loss).item()
        for name, p in cut.named_parameters():
            dist.all_reduce(p.grad, group=context)
            whole = plain.get_parameter(name.replace("decoder.", "model.").replace(".inner.", ".")).grad
            dim = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
            wanted = whole if "norm" in name else whole.chunk(2, dim)[dist.get_rank(tensor)]
            errors[method, name] = ((p.grad / 2 - wanted).norm() / wanted.norm()).item()
    return errors


for method, order in (("ring", "zigzag"), ("ring", "contiguous"), ("ulysses", "contiguous")):
    for tied in (False, True):
        report(**{f"{method} {order} tied={tied}": compare(method, order, tied=tied)})
report(
    recomputed=compare("ring", "", recompute=True),
    one_key_head=compare("ulysses", "", num_kv_heads=1),
)
if ranks == 4:  # two pairs, each with the sequence cut in two
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    others = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    report(with_tensor=with_tensor(others[rank % 2], pairs[rank // 2]))
    report(pairs=[compare(method, "", group=pairs[rank // 2]) for method in ("ring", "ulysses")])


def complaint(call):
    """What is said, and how much was sent before it was."""
    with measure(memory=False) as measured:
        try:
            call()
        except ValueError as error:
            said = str(error)
    return said, sum(row.count for row in measured.traffic)


def model(**shape):
    return GPT(GPTConfig(**{**SHAPE, **shape}))


tokens = torch.zeros(1, 2 * ranks + 1, dtype=torch.long)
three = torch.zeros(1, 3, 4, 8)
report(
    said={
        "heads": complaint(lambda: cut_context(model(num_heads=1, num_kv_heads=1), method="ulysses")),
        "zigzag": complaint(lambda: cut_sequence(tokens, method="ring")),
        "plain": complaint(lambda: cut_sequence(tokens, method="ulysses")),
        "odd": complaint(lambda: cut_context(model())(tokens[:, :3])),
        "method": complaint(lambda: cut_context(model(), method="spiral")),
        "order": complaint(lambda: cut_context(model(), method="ulysses", order="zigzag")),
        "no_gpt": complaint(lambda: cut_context(torch.nn.Linear(2, 2))),
        "torch": complaint(lambda: cut_context(model(), method="torch")),
        "torch_call": complaint(lambda: context_attention(three, three, three, method="torch")),
        "shared": complaint(lambda: context_attention(three, three[:, :2], three[:, :2])),
    }
)
dist.destroy_process_group()
