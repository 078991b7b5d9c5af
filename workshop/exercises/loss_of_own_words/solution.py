import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = logits.max(1).values
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits - largest[:, None]
    total = shifted.exp().sum(1)
    dist.all_reduce(total)
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)
