# %% other: cut_list
def zero_bytes(num_parameters, ranks, stage, optimizer_bytes=12):
    cut = [optimizer_bytes, 2, 2]  # in the order in which the stages cut them
    return num_parameters * (sum(cut[:stage]) / ranks + sum(cut[stage:]))


# %% wrong: one_thing_a_stage
# message: also divides what the stage before divided
def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Bytes a rank holds for weights, gradients and optimizer under a ZeRO stage, in mixed precision."""
    weights, gradients, optimizer = 2 * num_parameters, 2 * num_parameters, optimizer_bytes * num_parameters
    if stage == 1:
        optimizer /= ranks
    if stage == 2:
        gradients /= ranks
    if stage == 3:
        weights /= ranks
    return weights + gradients + optimizer


# %% wrong: forgets_the_gradients
# message: gradients stay whole
def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Bytes a rank holds for weights, gradients and optimizer under a ZeRO stage, in mixed precision."""
    weights, gradients, optimizer = 2 * num_parameters, 2 * num_parameters, optimizer_bytes * num_parameters
    if stage >= 1:
        optimizer /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer


# %% wrong: everything_at_once
# message: Only stage 3
def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Bytes a rank holds for weights, gradients and optimizer under a ZeRO stage, in mixed precision."""
    weights, gradients, optimizer = 2 * num_parameters, 2 * num_parameters, optimizer_bytes * num_parameters
    if stage >= 1:
        optimizer /= ranks
        gradients /= ranks
        weights /= ranks
    return weights + gradients + optimizer


# %% wrong: the_optimizer_late
# message: they are most of the memory
def zero_bytes(num_parameters: int, ranks: int, stage: int, optimizer_bytes: int = 12) -> float:
    """Bytes a rank holds for weights, gradients and optimizer under a ZeRO stage, in mixed precision."""
    weights, gradients, optimizer = 2 * num_parameters, 2 * num_parameters, optimizer_bytes * num_parameters
    if stage >= 2:
        optimizer /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer
