def ring_bytes(num_bytes: float, world_size: int) -> float:
    return num_bytes * (world_size - 1) / world_size
