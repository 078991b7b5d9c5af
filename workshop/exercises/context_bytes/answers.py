# %% other: values_first
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    query_bytes, key_bytes = (2 * seq_len * n * head_dim / ranks for n in (heads, kv_heads))
    if method == "ring":
        return sum([key_bytes + key_bytes] * (ranks - 1))
    all_bytes = query_bytes + key_bytes + key_bytes + query_bytes  # q, k, v and the output
    return all_bytes - all_bytes / ranks


# %% wrong: keys_alone
# message: *and* values
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * kv_heads * head_dim * positions * 2
    return (ranks - 1) / ranks * (2 * heads + 2 * kv_heads) * head_dim * positions * 2


# %% wrong: one_hop_more
# message: N - 1 hops
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return ranks * 2 * kv_heads * head_dim * positions * 2
    return (ranks - 1) / ranks * (2 * heads + 2 * kv_heads) * head_dim * positions * 2


# %% wrong: all_heads
# message: `kv_heads` of them
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * 2 * heads * head_dim * positions * 2
    return (ranks - 1) / ranks * (2 * heads + 2 * kv_heads) * head_dim * positions * 2


# %% wrong: all_positions
# message: own positions only
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * 2 * kv_heads * head_dim * positions * 2
    return (ranks - 1) / ranks * (2 * heads + 2 * kv_heads) * head_dim * seq_len * 2


# %% wrong: no_way_back
# message: sends four tensors
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * 2 * kv_heads * head_dim * positions * 2
    return (ranks - 1) / ranks * (heads + 2 * kv_heads) * head_dim * positions * 2


# %% wrong: sends_all_of_it
# message: is not sent
def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * 2 * kv_heads * head_dim * positions * 2
    return (2 * heads + 2 * kv_heads) * head_dim * positions * 2
