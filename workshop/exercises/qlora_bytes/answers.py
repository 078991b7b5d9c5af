# %% other: in_bytes
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    blocks = num_frozen / 64
    scales = blocks * 1 + blocks / 256 * 4 if double else blocks * 4
    return num_frozen / 2 + scales + num_trained * (4 + 4 + 8)


# %% wrong: no_scales
# message: the scales are missing
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    return num_frozen * bits / 8 + 16 * num_trained


# %% wrong: never_double
# message: `double` changes nothing yet
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 32 / 64
    return num_frozen * bits / 8 + 16 * num_trained


# %% wrong: no_second_scale
# message: 256 scales share is missing
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 8 / 64 if double else 32 / 64
    return num_frozen * bits / 8 + 16 * num_trained


# %% wrong: for_256_weights
# message: shared by 256 *scales*
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 8 / 64 + 32 / 256 if double else 32 / 64
    return num_frozen * bits / 8 + 16 * num_trained


# %% wrong: undivided
# message: divide
def qlora_bytes(num_frozen: int, num_trained: int, double: bool = True) -> float:
    """Bytes of a QLoRA model's weights and of what training keeps for them."""
    bits = 4  # of a frozen weight, and its share of the scales
    bits += 8 + 32 / 256 if double else 32
    return num_frozen * bits / 8 + 16 * num_trained
