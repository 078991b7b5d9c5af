def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Bytes a rank holds for weights, gradients and optimizer under a ZeRO stage, in mixed precision."""
    weights, gradients, optimizer = 2 * num_parameters, 2 * num_parameters, optimizer_bytes * num_parameters
    if stage >= 1:
        optimizer /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer
