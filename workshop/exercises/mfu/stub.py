def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = ...  # what counts of the log
    tokens_per_second = ...
    return ...
