def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for number, kernel in enumerate(kernels):
        python += launch
        device = max(device, python) + kernel
        if number in waits:
            python = device
    return sum(kernels) / device
