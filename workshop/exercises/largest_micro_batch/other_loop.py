def largest_micro_batch(memory_bytes, state_bytes, layer_bytes, num_layers):
    sequences = 0
    while state_bytes + (sequences + 1) * num_layers * layer_bytes <= memory_bytes:
        sequences += 1
    return sequences
