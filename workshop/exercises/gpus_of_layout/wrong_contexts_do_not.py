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
