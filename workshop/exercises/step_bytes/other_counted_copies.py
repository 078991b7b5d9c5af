def step_bytes(num_params, value_bytes=4, num_moments=2):
    return sum([num_params * value_bytes] * 2 + [num_params * 4] * (num_moments + (value_bytes != 4)))
