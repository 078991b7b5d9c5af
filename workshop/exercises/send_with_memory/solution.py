def send_with_memory(gradient, memory, compress):
    """What is sent of a gradient; `memory`, of the same shape, is updated in place."""
    wanted = gradient + memory
    sent = compress(wanted)
    memory[:] = wanted - sent
    return sent
