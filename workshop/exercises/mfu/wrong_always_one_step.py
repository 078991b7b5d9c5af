def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[1:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return tokens_per_second * flops_per_token / (num_devices * peak_flops_per_second)
