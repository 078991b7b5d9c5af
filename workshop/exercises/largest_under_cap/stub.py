def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest multiple of 64 with ddp_bytes of at most cap_bytes; 0 if none."""
    width = 0
    ...
    return width
