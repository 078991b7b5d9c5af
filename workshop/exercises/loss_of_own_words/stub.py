import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = ...  # of all words, at each position
    total = ...  # the sum of exp(logit - largest) over all words, at each position
    target = ...  # logit - largest of the target, at each position
    gradient = ...  # (positions, words)
    return (total.log() - target).mean(), gradient
