def send_with_memory(gradient, memory, compress):
    wanted = gradient + memory
    sent = compress(wanted)
    memory = wanted - sent
    return sent
