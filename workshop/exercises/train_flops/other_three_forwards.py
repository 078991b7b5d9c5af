def train_flops(num_params, num_tokens, num_layers, hidden_size, seq_len):
    forward = 2 * num_params + 4 * num_layers * seq_len * hidden_size
    return 3 * forward * num_tokens
