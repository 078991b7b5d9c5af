# %% other: product
import math


def gpus_of_layout(tensor=1, pipeline=1, data=1, context=1, **on_the_same_ranks):
    return math.prod([tensor, pipeline, data, context])


# %% wrong: experts_multiply
# message: Experts need no ranks
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return tensor * context * pipeline * data * expert


# %% wrong: contexts_do_not
# message: `context` multiplies
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return tensor * pipeline * data


# %% wrong: sequence_parallelism_multiplies
# message: it adds none
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return tensor * context * pipeline * data * (tensor if sequence_parallel else 1)


# %% wrong: a_sum
# message: sizes multiply
def gpus_of_layout(
    tensor: int = 1,
    pipeline: int = 1,
    data: int = 1,
    context: int = 1,
    expert: int = 1,
    sequence_parallel: bool = False,
) -> int:
    """GPUs, one rank each, of a layout."""
    return tensor + context + pipeline + data
