def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
) -> int:
    """The most sequences whose activations fit beside the state."""
    one_sequence = num_layers * layer_bytes
    return max(0, int(memory_bytes // one_sequence))
