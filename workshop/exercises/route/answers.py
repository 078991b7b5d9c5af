# %% other: softmax_of_the_chosen
def route(logits, k):
    best, chosen = logits.topk(k)
    return best.softmax(-1), chosen


# %% other: sorts_and_gathers
import torch


def route(logits, k):
    scores = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
    chosen = torch.argsort(scores, dim=1, descending=True)[:, :k]
    best = scores.gather(1, chosen)
    return best / best.sum(dim=1, keepdim=True), chosen


# %% wrong: not_scaled
# message: do not add up to one
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    weights, chosen = scores.topk(k)
    return weights, chosen


# %% wrong: softmax_twice
# message: a second softmax
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k)
    weights = best.softmax(-1)
    return weights, chosen


# %% wrong: over_the_tokens
# message: along the tokens
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(0)
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen


# %% wrong: one_sum_for_all_tokens
# message: one sum for all tokens
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k)
    weights = best / best.sum()
    return weights, chosen


# %% wrong: no_softmax
# message: logits, not of scores
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen


# %% wrong: the_worst
# message: the k worst experts
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k, largest=False)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen


# %% wrong: worst_first
# message: in another order
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    chosen = scores.argsort(-1)[:, -k:]
    best = scores.gather(-1, chosen)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen


# %% wrong: only_the_numbers_sorted
# message: each weight must stay with its expert
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen.sort(-1).values


# %% wrong: overflows
# message: is infinite
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.exp()
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return weights, chosen


# %% wrong: swapped
# message: the weights come first
import torch


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its k best experts, best first: their weights and numbers."""
    scores = logits.softmax(-1)
    best, chosen = scores.topk(k)
    weights = best / best.sum(-1, keepdim=True)
    return chosen, weights
