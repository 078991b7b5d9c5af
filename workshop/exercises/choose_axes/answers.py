# %% other: stages_first
import math


def choose_axes(gpus, gpus_per_node, pieces):
    stages = math.ceil(pieces / gpus_per_node)
    inside = min(gpus_per_node, pieces)
    return [inside, stages, gpus // stages // inside]


# %% wrong: tensor_across_nodes
# message: leaves the node
def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = pieces
    pipeline = -(-pieces // tensor)
    data = gpus // (tensor * pipeline)
    return tensor, pipeline, data


# %% wrong: pipeline_only
# message: Tensor parallelism comes first
def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = 1
    pipeline = -(-pieces // tensor)
    data = gpus // (tensor * pipeline)
    return tensor, pipeline, data


# %% wrong: rounds_down
# message: Round the stages up
def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = min(pieces, gpus_per_node)
    pipeline = pieces // tensor
    data = gpus // (tensor * pipeline)
    return tensor, pipeline, data


# %% wrong: data_counts_the_pipeline_s_ranks
# message: GPUs; there are
def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = min(pieces, gpus_per_node)
    pipeline = -(-pieces // tensor)
    data = gpus // tensor
    return tensor, pipeline, data


# %% wrong: always_a_whole_node
# message: further than it needs
def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = gpus_per_node
    pipeline = -(-pieces // tensor)
    data = gpus // (tensor * pipeline)
    return tensor, pipeline, data
