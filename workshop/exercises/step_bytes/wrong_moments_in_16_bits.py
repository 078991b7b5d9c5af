def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = gradients = value_bytes
    master = 4 if value_bytes < 4 else 0
    moments = value_bytes * num_moments
    return num_params * (weights + gradients + master + moments)
