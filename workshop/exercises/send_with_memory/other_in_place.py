def send_with_memory(gradient, memory, compress):
    memory += gradient
    sent = compress(memory)
    memory -= sent
    return sent
