def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 6 * num_params
    attention = 12 * hidden_size * seq_len
    return num_tokens * (weights + attention)
