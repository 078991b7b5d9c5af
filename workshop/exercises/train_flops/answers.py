# %% other: three_forwards
def train_flops(num_params, num_tokens, num_layers, hidden_size, seq_len):
    forward = 2 * num_params + 4 * num_layers * seq_len * hidden_size
    return 3 * forward * num_tokens


# %% wrong: forgets_attention
# message: The attention core is missing
def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 6 * num_params
    return num_tokens * weights


# %% wrong: forward_only
# message: the forward pass alone
def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 2 * num_params
    attention = num_layers * (2 * seq_len * hidden_size + 2 * seq_len * hidden_size)
    return num_tokens * (weights + attention)


# %% wrong: backward_as_costly_as_forward
# message: counts twice, not once
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


# %% wrong: attention_forward_only
# message: Attention runs backward too
def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 6 * num_params
    attention = num_layers * (2 * seq_len * hidden_size + 2 * seq_len * hidden_size)
    return num_tokens * (weights + attention)


# %% wrong: attention_of_one_token
# message: multiply it by `num_tokens` too
def train_flops(
    num_params: float,
    num_tokens: float,
    num_layers: int,
    hidden_size: int,
    seq_len: int,
) -> float:
    """FLOPs of forward and backward over num_tokens tokens, in sequences of seq_len."""
    weights = 6 * num_params
    attention = num_layers * 3 * (2 * seq_len * hidden_size + 2 * seq_len * hidden_size)
    return num_tokens * weights + attention


# %% wrong: attention_of_one_layer
# message: core of one layer
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
