def ring_bytes(num_bytes: float, world_size: int) -> float:
    return 2 * num_bytes
