def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between saves that lose least; any device that fails ends the job."""
    seconds_between = device_hours_between * 3600 / num_devices
    return (2 * save_seconds * seconds_between) ** 0.5
