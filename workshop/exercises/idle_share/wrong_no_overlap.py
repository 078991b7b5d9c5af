def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for number, kernel in enumerate(kernels):
        python += launch
        device += launch + kernel
        if number in waits:
            python = device
    return 1 - sum(kernels) / device
