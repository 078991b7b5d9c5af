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
