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
