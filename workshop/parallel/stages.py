"""Where to cut a model in stages, and the stages of a GPT.

Stages should take equally long, for the slowest sets the pace of all. Layers are alike, but the first stage
also has the embedding (nearly free) and the last the head and the loss (as dear as several layers, where the
vocabulary is large). `split_evenly` counts layers; `split_by_cost` is given what each takes, and makes the
largest sum as small as it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.models.gpt import GPT, rotary_table


def split_evenly(num_layers: int, num_stages: int) -> list[range]:
    """Layers of each stage; the first ones get one more where it does not come out even.

    Raises ValueError where a stage would have none.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot make {num_stages} stages; 1 to {num_layers} would do")
    each, more = divmod(num_layers, num_stages)
    ends = list(accumulate(each + (stage < more) for stage in range(num_stages)))
    return [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]


def split_by_cost(
    costs: Sequence[float], num_stages: int, first: float = 0.0, last: float = 0.0
) -> list[range]:
    """Layers of each stage, such that the dearest stage is as cheap as possible.

    costs: of each layer, in any unit; first, last: what the first and the last stage have besides (embedding,
    head).

    Tries every cut: ``best[s][n]`` is the smallest possible dearest stage when the first n layers make s
    stages, in O(stages layers^2). Raises ValueError as `split_evenly`, and for a negative cost.
    """
    num_layers = len(costs)
    split_evenly(num_layers, num_stages)
    if min(*costs, first, last) < 0:
        raise ValueError(f"a cost is negative: {min(*costs, first, last)}")
    sums = [0.0, *accumulate(costs)]
    best = [[float("inf")] * (num_layers + 1) for _ in range(num_stages + 1)]
    cut = [[0] * (num_layers + 1) for _ in range(num_stages + 1)]
    best[0][0] = 0.0
    for stage in range(1, num_stages + 1):
        extra = first * (stage == 1) + last * (stage == num_stages)
        for end in range(stage, num_layers + 1):
            for begin in range(stage - 1, end):
                dearest = max(best[stage - 1][begin], sums[end] - sums[begin] + extra)
                if dearest < best[stage][end]:
                    best[stage][end], cut[stage][end] = dearest, begin
    stages, end = [], num_layers
    for stage in range(num_stages, 0, -1):
        stages.append(range(cut[stage][end], end))
        end = cut[stage][end]
    return stages[::-1]


class GPTStage(nn.Module):
    """Some consecutive layers of a `GPT`; the first stage also has the embedding, the last the norm and the
    head.

    Names of parameters are those of the whole model. A stage takes tokens (batch, sequence) if it is the
    first, else activations (batch, sequence, hidden), and gives activations, or logits if it is the last.
    """

    def __init__(self, whole: GPT, layers: range) -> None:
        super().__init__()
        decoder, self.config = whole.model, whole.config
        self.positions = decoder.positions  # a rank's own, where the sequence is cut (parallel.context_gpt)
        self.sequence_ranks = 1  # over how many the positions between layers are cut (parallel.tensor_plans)
        self.is_first, self.is_last = layers.start == 0, layers.stop == len(decoder.layers)
        self.model: Any = nn.Module()  # holds what the whole model holds under this name
        self.model.layers = nn.ModuleDict({str(number): decoder.layers[number] for number in layers})
        if self.is_first:
            self.model.embed_tokens = decoder.embed_tokens
        if self.is_last:
            self.model.norm, self.lm_head = decoder.norm, whole.lm_head

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        length = x.shape[1] if self.is_first else x.shape[1] * self.sequence_ranks
        if self.is_first:
            x = self.model.embed_tokens(x)
        positions = self.positions(length, device=x.device)
        table = rotary_table(positions, self.config.head_dim, self.config.rope_theta)
        cos, sin = (turn.to(x.dtype) for turn in table)
        for layer in self.model.layers.values():
            x = layer(x, cos, sin)
        return self.lm_head(self.model.norm(x)) if self.is_last else x


def cut_stages(whole: GPT, cuts: Sequence[range], mine: Sequence[int]) -> dict[int, GPTStage]:
    """The stages of this rank, by number. With a tied embedding the first and the last stage hold a copy
    each, and `add_tied_gradients` sums what backward gives them.
    """
    if whole.config.tied and len(cuts) > 1:
        whole.lm_head.weight = nn.Parameter(whole.lm_head.weight.detach().clone())
    return {number: GPTStage(whole, cuts[number]) for number in mine}


def add_tied_gradients(stages: dict[int, GPTStage], group: dist.ProcessGroup | None = None) -> None:
    """After backward: the two copies of a tied embedding get the sum of their gradients.

    ``group``: the rank of the first and the rank of the last stage (Megatron-LM's embedding group); ranks
    outside do not call. Where one rank has both stages nothing is sent.
    """
    weights = [
        stage.model.embed_tokens.weight if place == 0 else stage.lm_head.weight
        for stage in stages.values()
        for place, holds in enumerate((stage.is_first, stage.is_last))
        if holds
    ]
    total = torch.stack([weight.grad for weight in weights if weight.grad is not None]).sum(0)
    if len(weights) == 1:
        dist.all_reduce(total, group=group)
    for weight in weights:
        weight.grad = total.clone()
