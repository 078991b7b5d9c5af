# %% other: timedelta
from datetime import timedelta


def days_to_train(stages, peak_flops_per_second):
    rates = [num_devices * peak_flops_per_second * share for _, num_devices, share in stages]
    times = [timedelta(seconds=stage[0] / rate) for stage, rate in zip(stages, rates, strict=True)]
    return sum(times, timedelta()) / timedelta(days=1)


# %% wrong: seconds
# message: These are seconds
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, num_devices, share in stages:
        seconds += flops / (num_devices * peak_flops_per_second * share)
    return seconds


# %% wrong: at_the_full_peak
# message: at the full peak
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, num_devices, _ in stages:
        seconds += flops / (num_devices * peak_flops_per_second)
    return seconds / (24 * 60 * 60)


# %% wrong: multiplies_by_the_share
# message: divide by the share
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, num_devices, share in stages:
        seconds += flops * share / (num_devices * peak_flops_per_second)
    return seconds / (24 * 60 * 60)


# %% wrong: one_device
# message: That is one device
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, _, share in stages:
        seconds += flops / (peak_flops_per_second * share)
    return seconds / (24 * 60 * 60)


# %% wrong: last_stage_only
# message: That is only the last stage
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    seconds = 0.0
    for flops, num_devices, share in stages:
        seconds = flops / (num_devices * peak_flops_per_second * share)
    return seconds / (24 * 60 * 60)


# %% wrong: mean_share
# message: A mean of the shares
def days_to_train(
    stages: list[tuple[float, int, float]],
    peak_flops_per_second: float,
) -> float:
    """Days of a run whose stages are (FLOPs, devices, MFU as a share, 0 to 1)."""
    flops = sum(flops for flops, _, _ in stages)
    num_devices = sum(num_devices for _, num_devices, _ in stages) / len(stages)
    share = sum(share for _, _, share in stages) / len(stages)
    return flops / (num_devices * peak_flops_per_second * share) / (24 * 60 * 60)


# %% wrong: side_by_side
# message: side by side
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
