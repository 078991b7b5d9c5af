def ring_bytes(num_bytes: float, world_size: int) -> float:
    chunk_bytes = num_bytes / world_size
    steps = world_size - 1
    print(2 * steps * chunk_bytes)
