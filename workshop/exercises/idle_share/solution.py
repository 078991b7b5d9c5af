def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    """Share of the time in which the device runs no kernel."""
    python = device = 0.0  # how far each of them has come
    for number, kernel in enumerate(kernels):
        python += launch
        device = max(device, python) + kernel
        if number in waits:
            python = device
    return 1 - sum(kernels) / device
