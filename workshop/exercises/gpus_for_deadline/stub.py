def gpus_for_deadline(
    params: dict[str, float],
    tokens: float,
    days: float,
    sheet: dict[str, float],
    mfu: float,
) -> int:
    """GPUs, in whole nodes of eight, that train on so many tokens within so many days."""
    flops = ...
    flops_of_one_gpu = ...
    return ...
