def mfu(log, flops_per_token, num_devices, peak_flops_per_second, warm_up=1):
    needed = possible = 0
    for number, (tokens, seconds) in enumerate(log):
        if number >= warm_up:
            needed += tokens * flops_per_token
            possible += seconds * num_devices * peak_flops_per_second
    return needed / possible
