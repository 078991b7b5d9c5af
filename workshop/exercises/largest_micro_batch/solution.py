def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes + logits_bytes
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)
