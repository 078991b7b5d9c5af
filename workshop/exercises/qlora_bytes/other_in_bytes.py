def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    blocks = num_frozen / 64
    scales = blocks * 1 + blocks / 256 * 4 if double else blocks * 4
    return num_frozen / 2 + scales + num_trained * (4 + 4 + 8)
