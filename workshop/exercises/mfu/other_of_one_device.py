def mfu(tokens_per_second, flops_per_token, num_devices, peak_flops_per_second):
    seconds_per_token = flops_per_token / peak_flops_per_second
    return tokens_per_second / num_devices * seconds_per_token
