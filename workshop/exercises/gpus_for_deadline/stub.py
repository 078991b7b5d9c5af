def gpus_for_deadline(
    params: dict[str, float],
    tokens: float,
    days: float,
    sheet: dict[str, float],
    mfu: float,
) -> int:
    """GPUs, in whole nodes of eight, that see so many tokens in so many days."""
    flops = ...
    flops_of_one_gpu = ...
    return ...
