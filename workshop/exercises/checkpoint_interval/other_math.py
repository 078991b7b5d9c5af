import math


def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    failures_per_second = num_devices / device_hours_between / 3600
    return math.sqrt(2 * save_seconds / failures_per_second)
