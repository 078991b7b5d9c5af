# %% other: two_collectives
import torch
import torch.distributed as dist
from torch.nn.functional import one_hot


def loss_of_own_words(logits, targets):
    words = logits.shape[1]
    own = (targets - dist.get_rank() * words).clamp(-1, words) + 1  # 0 and words + 1: another rank's
    right = one_hot(own, words + 2)[:, 1:-1]
    largest = logits.amax(1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    shifted = logits - largest.unsqueeze(1)
    both = torch.stack([shifted.exp().sum(1), (shifted * right).sum(1)])
    dist.all_reduce(both)
    softmax = (shifted - both[0].log().unsqueeze(1)).exp()
    return (both[0].log() - both[1]).sum() / len(targets), (softmax - right) / len(targets)


# %% other: log_sum_of_its_own
import torch
import torch.distributed as dist


def loss_of_own_words(logits, targets):
    first, words = dist.get_rank() * logits.shape[1], logits.shape[1]
    right = torch.arange(first, first + words, device=logits.device) == targets[:, None]
    own = logits.logsumexp(1)  # safe: it subtracts the rank's largest and adds it again
    largest = own.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    total = (own - largest).exp()
    dist.all_reduce(total)
    target = logits.masked_fill(~right, 0).sum(1)
    dist.all_reduce(target)
    log_total = total.log() + largest
    gradient = (logits - log_total[:, None]).exp() - right.float()
    return (log_total - target).mean(), gradient / len(targets)


# %% wrong: largest_of_its_own
# message: each rank subtracts the largest of its own words
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = logits.max(1).values
    shifted = logits - largest[:, None]
    total = shifted.exp().sum(1)
    dist.all_reduce(total)
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: adds_up_the_largest
# message: Without it, all_reduce adds up
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = logits.max(1).values
    dist.all_reduce(largest)
    shifted = logits - largest[:, None]
    total = shifted.exp().sum(1)
    dist.all_reduce(total)
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: overflows
# message: exp(500) is infinite
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = torch.zeros(len(targets), device=logits.device)
    shifted = logits - largest[:, None]
    total = shifted.exp().sum(1)
    dist.all_reduce(total)
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: sum_of_its_own
# message: over this rank's words alone
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
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: target_stays_at_home
# message: does not know the logit of the target
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
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: forgets_minus_one
# message: minus 1 at the target
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
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: minus_one_on_every_rank
# message: on every rank
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
    gradient[positions, own % words] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: gradient_of_the_sum
# message: of the sum over positions
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
    return (total.log() - target).mean(), gradient


# %% wrong: sums_the_gradient
# message: nothing to add
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
    dist.all_reduce(gradient)
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: in_place
# message: changed `logits`
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    own = targets - dist.get_rank() * words  # the targets, counted in this rank's words
    mine = (own >= 0) & (own < words)  # is the target one of this rank's words?
    largest = logits.max(1).values
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    shifted = logits.sub_(largest[:, None])
    total = shifted.exp().sum(1)
    dist.all_reduce(total)
    target = torch.zeros_like(total)
    target[mine] = shifted[positions[mine], own[mine]]
    dist.all_reduce(target)
    gradient = shifted.exp() / total[:, None]  # softmax
    gradient[positions[mine], own[mine]] -= 1
    return (total.log() - target).mean(), gradient / len(targets)


# %% wrong: gathers
# message: carried 20 float32 numbers for each position
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    parts = [torch.empty_like(logits) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, logits.contiguous())
    whole = torch.cat(parts, 1).requires_grad_()
    loss = cross_entropy(whole, targets)
    loss.backward()
    return loss.detach(), whole.grad.chunk(len(parts), 1)[dist.get_rank()]


# %% wrong: changes_the_targets
# message: changed `targets`
import torch
import torch.distributed as dist


def loss_of_own_words(logits: torch.Tensor, targets: torch.Tensor):
    """The mean loss over all words, and its gradient for this rank's logits."""
    words, positions = logits.shape[1], torch.arange(len(targets), device=logits.device)
    targets -= dist.get_rank() * words
    own = targets
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
