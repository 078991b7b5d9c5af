def send_with_memory(gradient, memory, compress):
    return compress(gradient)
