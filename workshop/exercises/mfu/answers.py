# %% other: loop
def mfu(log, flops_per_token, num_devices, peak_flops_per_second, warm_up=1):
    needed = possible = 0
    for number, (tokens, seconds) in enumerate(log):
        if number >= warm_up:
            needed += tokens * flops_per_token
            possible += seconds * num_devices * peak_flops_per_second
    return needed / possible


# %% wrong: always_one_step
# message: whatever `warm_up` is
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


# %% wrong: counts_the_warm_up
# message: The first steps are in it
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return tokens_per_second * flops_per_token / (num_devices * peak_flops_per_second)


# %% wrong: mean_of_rates
# message: a mean of the steps' rates
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens / took for tokens, took in steady) / len(steady)
    return tokens_per_second * flops_per_token / (num_devices * peak_flops_per_second)


# %% wrong: forgets_the_devices
# message: how many devices at full speed
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return tokens_per_second * flops_per_token / peak_flops_per_second


# %% wrong: each_device_sees_all
# message: All tokens are already counted
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return num_devices * tokens_per_second * flops_per_token / peak_flops_per_second


# %% wrong: in_per_cent
# message: in per cent
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return 100 * tokens_per_second * flops_per_token / (num_devices * peak_flops_per_second)


# %% wrong: six_twice
# message: the 6 is in it
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return 6 * tokens_per_second * flops_per_token / (num_devices * peak_flops_per_second)


# %% wrong: upside_down
# message: Upside down
def mfu(
    log: list[tuple[int, float]],
    flops_per_token: float,
    num_devices: int,
    peak_flops_per_second: float,
    warm_up: int = 1,
) -> float:
    """MFU, 0 to 1, of a log: (tokens of all devices, seconds) of each step."""
    steady = log[warm_up:]
    tokens_per_second = sum(tokens for tokens, _ in steady) / sum(took for _, took in steady)
    return num_devices * peak_flops_per_second / (tokens_per_second * flops_per_token)
