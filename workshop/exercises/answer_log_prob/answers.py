# %% other: cross_entropy
import torch
import torch.nn.functional as F


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    targets = torch.where(counted, texts, -100)[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return -losses.sum(1)


# %% other: token_by_token
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    sums = []
    for row, text, wanted in zip(logits, texts, counted, strict=True):
        total = row.new_zeros(())
        for place in range(1, len(text)):
            if wanted[place]:
                scores = row[place - 1]
                total = total + scores[text[place]] - torch.logsumexp(scores, 0)
        sums.append(total)
    return torch.stack(sums)


# %% wrong: not_shifted
# message: comes next
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    each = logits.log_softmax(-1).gather(-1, texts[..., None])[..., 0]
    return (each * counted).sum(1)


# %% wrong: the_question_too
# message: do not count
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return each.sum(1)


# %% wrong: mask_not_shifted
# message: `counted` is shifted
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, :-1]).sum(1)


# %% wrong: the_mean
# message: mean
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum(1) / counted[:, 1:].sum(1)


# %% wrong: raw_logits
# message: log_softmax
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    each = logits[:, :-1].gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum(1)


# %% wrong: sum_of_probabilities
# message: logarithm
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum(1)


# %% wrong: sign_turned
# message: sign
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return -(each * counted[:, 1:]).sum(1)


# %% wrong: one_number
# message: one number for each text
import torch


def answer_log_prob(
    logits: torch.Tensor,
    texts: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Log probability of each answer, (texts,). counted: which tokens are its own."""
    every = logits[:, :-1].log_softmax(-1)
    each = every.gather(-1, texts[:, 1:, None])[..., 0]
    return (each * counted[:, 1:]).sum()
