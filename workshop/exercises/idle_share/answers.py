# %% other: recursive
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    handed, end, idle = 0.0, 0.0, 0.0
    for number in range(len(kernels)):
        handed += launch
        idle += max(0.0, handed - end)
        end = max(end, handed) + kernels[number]
        handed = end if number in waits else handed
    return idle / end


# %% wrong: never_waits
# message: never waits
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for kernel in kernels:
        python += launch
        device = max(device, python) + kernel
    return 1 - sum(kernels) / device


# %% wrong: waits_always
# message: waits after every kernel
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for kernel in kernels:
        python += launch
        device = max(device, python) + kernel
        python = device
    return 1 - sum(kernels) / device


# %% wrong: no_overlap
# message: one after the other
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for number, kernel in enumerate(kernels):
        python += launch
        device += launch + kernel
        if number in waits:
            python = device
    return 1 - sum(kernels) / device


# %% wrong: busy_not_idle
# message: busy, not idle
def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for number, kernel in enumerate(kernels):
        python += launch
        device = max(device, python) + kernel
        if number in waits:
            python = device
    return sum(kernels) / device
