def largest_under_cap(cap_bytes, parameters):
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ddp_bytes(parameters(64 * middle)) <= cap_bytes else (low, middle)
    return 64 * low
