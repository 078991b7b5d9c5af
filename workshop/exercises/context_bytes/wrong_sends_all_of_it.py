def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return (ranks - 1) * 2 * kv_heads * head_dim * positions * 2
    return (2 * heads + 2 * kv_heads) * head_dim * positions * 2
