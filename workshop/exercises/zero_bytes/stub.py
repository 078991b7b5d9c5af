def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12):
    """Bytes of weights, gradients and optimizer on a rank, in mixed precision."""
    weights, gradients, state = (num_parameters * b for b in (2, 2, optimizer_bytes))
    ...
    return weights + gradients + state
