def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of a tensor of num_bytes."""
    chunk_bytes = num_bytes / world_size
    steps = world_size - 1
    return 2 * steps * chunk_bytes
