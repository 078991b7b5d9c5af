# %% other: counted_copies
def step_bytes(num_params, value_bytes=4, num_moments=2):
    return sum([num_params * value_bytes] * 2 + [num_params * 4] * (num_moments + (value_bytes != 4)))


# %% wrong: no_master_copy
# message: keeps an fp32 master copy
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = gradients = value_bytes
    moments = 4 * num_moments
    return num_params * (weights + gradients + moments)


# %% wrong: moments_in_16_bits
# message: The moments stay in fp32
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = gradients = value_bytes
    master = 4 if value_bytes < 4 else 0
    moments = value_bytes * num_moments
    return num_params * (weights + gradients + master + moments)


# %% wrong: no_gradients
# message: The gradients are missing
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = value_bytes
    master = 4 if value_bytes < 4 else 0
    moments = 4 * num_moments
    return num_params * (weights + master + moments)


# %% wrong: always_a_master_copy
# message: their own master copy
def step_bytes(num_params: int, value_bytes: int = 4, num_moments: int = 2) -> int:
    """Bytes of weights, gradients and optimizer state, before any activation."""
    weights = gradients = value_bytes
    master = 4
    moments = 4 * num_moments
    return num_params * (weights + gradients + master + moments)
