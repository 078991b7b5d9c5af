def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 8 / 64 + 32 / (64 * 256) if double else 32 / 64
    return num_frozen * bits / 8 + 16 * num_trained
