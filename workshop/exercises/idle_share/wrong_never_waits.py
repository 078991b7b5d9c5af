def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    python = device = 0.0
    for kernel in kernels:
        python += launch
        device = max(device, python) + kernel
    return 1 - sum(kernels) / device
