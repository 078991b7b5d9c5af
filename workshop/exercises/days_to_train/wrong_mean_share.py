def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    flops = sum(flops for flops, _, _ in stages)
    num_devices = sum(num_devices for _, num_devices, _ in stages) / len(stages)
    share = sum(share for _, _, share in stages) / len(stages)
    return flops / (num_devices * peak_flops_per_second * share) / (24 * 60 * 60)
