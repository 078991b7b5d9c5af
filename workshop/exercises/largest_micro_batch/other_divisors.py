def largest_micro_batch(memory_bytes, state_bytes, layer_bytes, num_layers, logits_bytes, batch):
    each = num_layers * layer_bytes + logits_bytes
    divisors = (size for size in range(1, batch + 1) if batch % size == 0)
    return max((size for size in divisors if state_bytes + size * each <= memory_bytes), default=0)
