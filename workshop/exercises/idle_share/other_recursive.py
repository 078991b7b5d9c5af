def idle_share(launch: float, kernels: list[float], waits: set[int]) -> float:
    handed, end, idle = 0.0, 0.0, 0.0
    for number in range(len(kernels)):
        handed += launch
        idle += max(0.0, handed - end)
        end = max(end, handed) + kernels[number]
        handed = end if number in waits else handed
    return idle / end
