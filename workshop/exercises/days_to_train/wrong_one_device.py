def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, _, share in stages:
        seconds += flops / (peak_flops_per_second * share)
    return seconds / (24 * 60 * 60)
