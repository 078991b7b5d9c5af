def chunk_loss(hidden, weight, targets):
    """Summed loss of some tokens, and its gradients by hidden and by weight."""
    counts = (targets >= 0)[:, None]  # (tokens, 1)
    right = targets.clamp(min=0)[:, None]
    log_p = (hidden @ weight.T).log_softmax(-1)
    loss = -(log_p.gather(1, right) * counts).sum()
    error = log_p.exp_()  # the gradient by the logits, (tokens, words)
    error *= counts
    return loss, error @ weight, error.T @ hidden
