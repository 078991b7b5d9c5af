def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, with ddp_bytes of at most cap_bytes; or 0."""
    width = 0
    ...
    return width
