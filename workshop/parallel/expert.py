r"""Expert parallelism by hand: the experts stay where they are, and tokens travel to them.

The ranks of a group see different tokens (they are data-parallel for everything else), and each holds
``num_experts / ranks`` of the experts. In a layer every rank may have tokens for every other's experts::

    route      each rank, for its own tokens                           nothing is sent
    announce   how many choices go to whom: all_to_all of counts       num_experts numbers a rank
    dispatch   all_to_all of the tokens, in uneven parts               top_k * tokens * hidden, (N-1)/N away
    compute    each rank's experts, on what has arrived
    combine    all_to_all back, then weigh and add                     as much again

(GShard, Lepikhin et al. 2020, arXiv 2006.16668, section 3; here without padding to a fixed capacity, as in
MegaBlocks, Gale et al. 2022, arXiv 2211.15841.) Backward sends the same bytes the other way, twice more.

An uneven router now costs time: a layer lasts as long as the rank with the most choices (`load` says how many
each has), and all others wait in the all_to_all.

**Gradients.** The loss of a step is the mean over ranks. A weight that all hold gets it by averaging
gradients, as in DDP. An expert has got *every* rank's tokens already, so its gradient is a sum over ranks: it
is divided by their number here and must not be averaged over the group again (`expert_parameters` says which
those are). Where a group of experts exists several times, average it over its copies.

**Balance.** The share f of choices is counted over the ranks' tokens together. A rank's own few tokens may
well prefer some experts; evenness is wanted of all (Qiu et al. 2025, arXiv 2501.11873).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workshop.models.moe import MoE, MoEConfig, Router, Routing, combine, sorted_choices

Group = dist.ProcessGroup | None


class AllToAll(torch.autograd.Function):
    """Rows to ranks: the first ``sends[0]`` rows to rank 0 and so on; what comes is in the order of ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sends: list[int], receives: list[int], group: Group) -> Tensor:
        """One all_to_all with uneven parts: (sum(sends), ...) goes, (sum(receives), ...) comes."""
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        coming = rows.new_empty((sum(receives), *rows.shape[1:]))
        dist.all_to_all_single(coming, rows.contiguous(), receives, sends, group=group)
        return coming

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """The way back: (sum(receives), ...) to (sum(sends), ...)."""
        return AllToAll.apply(gradient, ctx.receives, ctx.sends, ctx.group), None, None, None


class GroupRouter(Router):
    """A router whose balance looks at the tokens of all ranks."""

    def __init__(self, config: MoEConfig, group: Group) -> None:
        super().__init__(config)
        self.group = group

    def shares(self, expert: Tensor) -> Tensor:
        """f over the group, (experts,): counts add up."""
        counts = super().shares(expert) * expert.numel()
        dist.all_reduce(counts, group=self.group)
        return counts / counts.sum()


class ExpertParallelMoE(MoE):
    """A `MoE` of which each rank of a group keeps ``num_experts / ranks`` experts; made by `cut_experts`.

    After a forward ``load`` is how many choices came to this rank.
    """

    def __init__(self, whole: MoE, group: Group) -> None:
        nn.Module.__init__(self)
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        self.config, self.group, self.load = whole.config, group, 0
        if self.config.num_experts % ranks:
            raise ValueError(f"{self.config.num_experts} experts cannot be dealt out evenly to {ranks} ranks")
        self.gate = GroupRouter(whole.config, group)
        self.gate.weight = whole.gate.weight
        self.experts = whole.experts
        for name, stacked in list(whole.experts.named_parameters()):
            mine = nn.Parameter(stacked.data.chunk(ranks)[rank].clone())
            mine.register_hook(lambda gradient: gradient / ranks)
            setattr(self.experts, name, mine)

    def spread(self, tokens: Tensor, routing: Routing) -> Tensor:
        """As `MoE.spread`, (tokens, hidden) of this rank, with a journey before the experts and one after."""
        token, order, counts = sorted_choices(routing, self.config.num_experts)
        leaving = counts.view(dist.get_world_size(self.group), -1)  # (ranks, experts of each)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving, group=self.group)
        sends, receives = leaving.sum(1).tolist(), arriving.sum(1).tolist()
        visitors = AllToAll.apply(tokens[token], sends, receives, self.group)
        self.load = len(visitors)
        # They come sorted by rank, and within a rank by expert; the experts want them sorted by expert.
        local = torch.arange(arriving.shape[1], device=arriving.device).repeat(len(arriving))
        expert = local.repeat_interleave(arriving.flatten(), output_size=self.load)
        by_expert = expert.argsort(stable=True)
        answers = self.experts(visitors[by_expert], arriving.sum(0).tolist())
        home = AllToAll.apply(answers[by_expert.argsort()], receives, sends, self.group)
        return combine(tokens, home, token, routing.weight.flatten()[order])


def cut_experts(model: nn.Module, group: Group = None) -> nn.Module:
    """Deal out the experts of every mixture in a model to the ranks of a group, in place.

    All ranks must come with the same weights. Raises ValueError where there are no mixtures, or where experts
    do not divide by ranks.
    """
    mixtures = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, MoE)
    ]
    if not mixtures:
        raise ValueError("the model has no mixture of experts; `models.moe.with_experts` puts them in")
    for parent, name, child in mixtures:
        setattr(parent, name, ExpertParallelMoE(child, group))
    return model


def expert_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that only one rank of the group holds; everything else is averaged over ranks, as in
    DDP."""
    for module in model.modules():
        if isinstance(module, ExpertParallelMoE):
            yield from module.experts.parameters()
