def mfu(
    tokens_per_second: float,
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
) -> float:
    """Model FLOPs per second over what the devices could do, 0 to 1."""
    return tokens_per_second * flops_per_token / peak_flops_per_second
