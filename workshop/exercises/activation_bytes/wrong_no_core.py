def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    values = seq_len * micro_batch * hidden_size
    each = {"none": 34, "selective": 34, "full": 2}
    return values * each[recompute]
