def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    work, speed = 0.0, 0.0
    for flops, num_devices, share in stages:
        work += flops
        speed += num_devices * peak_flops_per_second * share
    return work / speed / (24 * 60 * 60)
