# %% other: in_place
def send_with_memory(gradient, memory, compress):
    memory += gradient
    sent = compress(memory)
    memory -= sent
    return sent


# %% wrong: no_memory
# message: memory [0, 0, 0]: the memory is now [0, 0, 0]
def send_with_memory(gradient, memory, compress):
    return compress(gradient)


# %% wrong: kept_never_added
# message: Compress the gradient and the memory together
def send_with_memory(gradient, memory, compress):
    sent = compress(gradient)
    memory[:] = gradient - sent
    return sent


# %% wrong: rebound
# message: `memory = ...` only renames
def send_with_memory(gradient, memory, compress):
    wanted = gradient + memory
    sent = compress(wanted)
    memory = wanted - sent
    return sent


# %% wrong: forgets_the_older_rest
# message: What memory held before is lost
def send_with_memory(gradient, memory, compress):
    sent = compress(gradient + memory)
    memory[:] = gradient - sent
    return sent


# %% wrong: piles_up
# message: it is there twice
def send_with_memory(gradient, memory, compress):
    wanted = gradient + memory
    sent = compress(wanted)
    memory += wanted - sent
    return sent
