def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 4 * num_params
    attention = num_layers * 2 * (2 * seq_len * hidden_size + 2 * seq_len * hidden_size)
    return num_tokens * (weights + attention)
