def days_to_train(
    flops: float,
    num_devices: int,
    peak_flops_per_second: float,
    mfu: float,
) -> float:
    """Days of a training run; mfu is a share of the peak, 0 to 1."""
    seconds = flops / (num_devices * peak_flops_per_second)
    return seconds / (24 * 60 * 60)
