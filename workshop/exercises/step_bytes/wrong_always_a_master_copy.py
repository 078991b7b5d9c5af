def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = gradients = value_bytes
    master = 4
    moments = 4 * num_moments
    return num_params * (weights + gradients + master + moments)
