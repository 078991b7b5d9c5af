def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = ...
    fitting = ...  # as many as there is room for
    ...
    return ...
