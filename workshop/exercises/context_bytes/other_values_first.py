def context_bytes(method: str, seq_len: int, heads: int, kv_heads: int, head_dim: int, ranks: int) -> float:
    query_bytes, key_bytes = (2 * seq_len * n * head_dim / ranks for n in (heads, kv_heads))
    if method == "ring":
        return sum([key_bytes + key_bytes] * (ranks - 1))
    all_bytes = query_bytes + key_bytes + key_bytes + query_bytes  # q, k, v and the output
    return all_bytes - all_bytes / ranks
