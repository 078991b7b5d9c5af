def choose_axes(gpus: int, gpus_per_node: int, pieces: int) -> tuple[int, int, int]:
    """(tensor, pipeline, data) for a model that must be cut into so many pieces."""
    tensor = min(pieces, gpus_per_node)
    pipeline = pieces // tensor
    data = gpus // (tensor * pipeline)
    return tensor, pipeline, data
