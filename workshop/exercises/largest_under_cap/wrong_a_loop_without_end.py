def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 0
    while ddp_bytes(parameters(width + 64)) <= cap_bytes:
        pass
    return width
