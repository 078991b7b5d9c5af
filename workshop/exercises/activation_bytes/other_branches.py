def activation_bytes(seq_len, micro_batch, hidden_size, num_heads, recompute="none"):
    if recompute == "full":
        return 2 * seq_len * micro_batch * hidden_size
    core = 5 * num_heads * seq_len**2 * micro_batch if recompute == "none" else 0
    return 34 * seq_len * micro_batch * hidden_size + core
