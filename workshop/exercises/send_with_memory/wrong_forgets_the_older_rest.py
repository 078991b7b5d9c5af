def send_with_memory(gradient, memory, compress):
    sent = compress(gradient + memory)
    memory[:] = gradient - sent
    return sent
