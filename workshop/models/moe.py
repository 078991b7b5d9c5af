r"""A mixture of experts: many gated networks, of which each token uses a few.

A router scores the experts for every token, the best ``top_k`` run, and their answers are added with the
scores as weights (Shazeer et al. 2017, arXiv 1701.06538; in the form of Mixtral, arXiv 2401.04088, section
2.1)::

    p = softmax(x W)                       (tokens, experts)
    y = sum over the k best of   p_i / (sum of the k best p)   *   expert_i(x)

So a layer has ``num_experts`` times the parameters and ``top_k`` times the FLOPs of a plain one.

**Balance.** Nothing makes the router use all experts: the one that is best learns most and gets better. Two
cures. A loss (Switch Transformer, Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6) ::

    balance = num_experts * sum over i of  f_i P_i      f_i  the share of all choices that fell on expert i
                                                        P_i  the mean of p_i over tokens

which is 1 when all are used alike and ``num_experts / top_k`` when the same ones are always used. f_i
counts, so only P_i has a gradient. And a **capacity**: an expert takes at most
``capacity_factor * tokens * top_k / num_experts`` choices, first come, first served; a choice beyond is
dropped, and the token goes on with what its other experts gave, or just with its residual. Without a factor
nothing is dropped.

Parameters are named and shaped as in transformers' `MixtralSparseMoeBlock` (version 5): state dicts load both
ways.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workshop.models.gpt import GPT


@dataclass(frozen=True)
class MoEConfig:
    """The shape of a mixture.

    Args:
        hidden_size: width of the residual stream.
        intermediate_size: width inside one expert.
        num_experts, top_k: experts, and how many of them a token uses.
        capacity_factor: how many times its fair share an expert takes; None: everything.
    """

    hidden_size: int = 256
    intermediate_size: int = 352
    num_experts: int = 8
    top_k: int = 2
    capacity_factor: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k = {self.top_k}: a token uses between 1 and {self.num_experts} experts")
        if self.capacity_factor is not None and self.capacity_factor < 1:
            share = max(self.capacity_factor, 0)
            raise ValueError(
                f"capacity_factor = {self.capacity_factor:g}: the {self.num_experts} experts together would "
                f"take {share:.0%} of a batch's choices, and even an even router overflows them; "
                "give 1 or more (1.25 is usual), or None to drop nothing"
            )

    def capacity(self, num_tokens: int) -> int:
        """Choices that one expert takes of so many tokens."""
        if self.capacity_factor is None:
            return num_tokens
        return ceil(self.capacity_factor * num_tokens * self.top_k / self.num_experts)


@dataclass(frozen=True)
class Routing:
    """Where tokens go.

    expert: (tokens, top_k) whole numbers, best first; weight: (tokens, top_k), of which kept ones add up to
    at most 1;
    kept: (tokens, top_k), False for a choice that was dropped; balance: the loss above, a scalar.
    """

    expert: Tensor
    weight: Tensor
    kept: Tensor
    balance: Tensor


class Router(nn.Module):
    """Scores, the best of them, and the loss that keeps experts in use."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size).normal_(std=0.02))

    def forward(self, x: Tensor) -> Routing:
        """x: (tokens, hidden)."""
        probability = F.linear(x, self.weight).float().softmax(-1)
        best, expert = probability.topk(self.config.top_k, dim=-1)
        weight = (best / best.sum(-1, keepdim=True)).to(x.dtype)
        return Routing(expert, weight, self.within_capacity(expert), self.balance(probability, expert))

    def within_capacity(self, expert: Tensor) -> Tensor:
        """Which choices their expert takes: first choices before any second one, tokens in their order.

        expert: (tokens, top_k). Returns booleans of that shape.
        """
        chosen = F.one_hot(expert.T.flatten(), self.config.num_experts)  # (top_k * tokens, experts)
        place = (chosen.cumsum(0) * chosen).sum(-1)  # counted from one
        return (place <= self.config.capacity(len(expert))).view(self.config.top_k, -1).T

    def balance(self, probability: Tensor, expert: Tensor) -> Tensor:
        """num_experts * sum f_i P_i, a scalar.

        probability: (tokens, num_experts); expert: (tokens, top_k).
        """
        share = self.shares(expert)
        return self.config.num_experts * (share * probability.mean(0)).sum()

    def shares(self, expert: Tensor) -> Tensor:
        """f: the share of choices that fell on each expert, (num_experts,), in sum 1."""
        return torch.bincount(expert.flatten(), minlength=self.config.num_experts) / expert.numel()


class Experts(nn.Module):
    """Some gated networks, one after the other: SwiGLU with stacked weights.

    gate_up_proj (experts, 2 intermediate, hidden), down_proj (experts, hidden, intermediate).
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        inner, width, num = config.intermediate_size, config.hidden_size, config.num_experts
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * inner, width).normal_(std=0.02))
        self.down_proj = nn.Parameter(torch.empty(num, width, inner).normal_(std=0.02))

    def forward(self, x: Tensor, counts: list[int]) -> Tensor:
        """x: (choices, hidden), the first ``counts[0]`` rows for the first expert, and so on. The same
        shape."""
        answers = []
        for rows, gate_up, down in zip(x.split(counts), self.gate_up_proj, self.down_proj, strict=True):
            gate, up = F.linear(rows, gate_up).chunk(2, dim=-1)
            answers.append(F.linear(F.silu(gate) * up, down))
        return torch.cat(answers)


class MoE(nn.Module):
    """Router and experts in the place of a plain gated network.

    After a forward, ``balance`` is its balance loss (add some of it to yours) and ``routing`` what was
    decided.
    """

    balance: Tensor
    routing: Routing

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config, self.gate, self.experts = config, Router(config), Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, hidden) to the same."""
        tokens = x.flatten(0, -2)
        routing = self.gate(tokens)
        self.balance, self.routing = routing.balance, routing
        return self.spread(tokens, routing).view_as(x)

    def spread(self, tokens: Tensor, routing: Routing) -> Tensor:
        """Sort the choices by expert, let each expert work on its own, and bring the answers home.

        tokens: (tokens, hidden), as the result.
        """
        token, order, counts = sorted_choices(routing, self.config.num_experts)
        answers = self.experts(tokens[token], counts.tolist())
        return combine(tokens, answers, token, routing.weight.flatten()[order])


def sorted_choices(routing: Routing, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The kept choices, sorted by expert.

    Returns:
        Each choice's token, (choices,); its place in the flattened (tokens * top_k), (choices,); and how many
        choices an expert has, (num_experts,).
    """
    expert = routing.expert.flatten().where(routing.kept.flatten(), num_experts)  # dropped ones last
    counts = torch.bincount(expert, minlength=num_experts)[:num_experts]
    order = expert.argsort(stable=True)[: int(counts.sum())]
    return order // routing.expert.shape[1], order, counts


def combine(tokens: Tensor, answers: Tensor, token: Tensor, weight: Tensor) -> Tensor:
    """Add each answer, times its weight, to its token.

    tokens: (tokens, hidden), as the result; answers: (choices, hidden); token and weight: (choices,).
    """
    return torch.zeros_like(tokens).index_add(0, token, answers * weight.unsqueeze(-1))


def with_experts(model: GPT, config: MoEConfig) -> GPT:
    """Put a mixture in the place of every layer's gated network; the model comes back changed.

    Raises ValueError where the widths differ.
    """
    if model.config.hidden_size != config.hidden_size:
        raise ValueError(
            f"the experts are {config.hidden_size} wide, the model is {model.config.hidden_size}"
        )
    layers: list[Any] = list(model.model.layers)
    for layer in layers:
        layer.mlp = MoE(config).to(layer.mlp.down_proj.weight)
    return model


def balance_of(model: nn.Module) -> Tensor:
    """The mean balance loss over a model's mixtures, a scalar, after a forward.

    ValueError where it has none.
    """
    losses = [module.balance for module in model.modules() if isinstance(module, MoE)]
    if not losses:
        raise ValueError("the model has no mixture of experts; `with_experts` puts them in")
    return torch.stack(losses).mean()
