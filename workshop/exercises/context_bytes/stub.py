def context_bytes(
    method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int
) -> float:
    """Bytes that one rank sends in the forward of one attention layer."""
    positions = seq_len / ranks  # of one rank
    if method == "ring":
        return ...
    return ...
