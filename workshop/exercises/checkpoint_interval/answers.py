# %% other: math
import math


def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    failures_per_second = num_devices / device_hours_between / 3600
    return math.sqrt(2 * save_seconds / failures_per_second)


# %% other: search
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Halve the interval in which the share of time lost stops falling."""
    seconds_between = device_hours_between * 3600 / num_devices

    def lost(t: float) -> float:
        return save_seconds / t + t / (2 * seconds_between)

    low, high = 1e-3, 10 * seconds_between
    for _ in range(100):
        middle = (low + high) / 2
        if lost(middle) > lost(middle * (1 + 1e-6)):
            low = middle
        else:
            high = middle
    return middle


# %% wrong: one_device
# message: That is for one device
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between * 3600
    return (2 * save_seconds * seconds_between) ** 0.5


# %% wrong: hours
# message: an hour has 3,600
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between / num_devices
    return (2 * save_seconds * seconds_between) ** 0.5


# %% wrong: without_the_2
# message: The 2 is missing
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between * 3600 / num_devices
    return (save_seconds * seconds_between) ** 0.5


# %% wrong: without_the_root
# message: take the root
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between * 3600 / num_devices
    return 2 * save_seconds * seconds_between


# %% wrong: at_each_failure
# message: would be done again
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    return device_hours_between * 3600 / num_devices


# %% wrong: multiplied
# message: divide by `num_devices`
def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between * 3600 * num_devices
    return (2 * save_seconds * seconds_between) ** 0.5
