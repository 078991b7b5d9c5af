def checkpoint_interval(save_seconds: float, num_devices: int, device_hours_between: float) -> float:
    """Seconds between two saves that lose least; M is the mean time between failures of the whole job."""
    seconds_between = device_hours_between * 3600 / num_devices
    return (save_seconds * seconds_between) ** 0.5
