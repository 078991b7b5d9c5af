# %% other: bisection
def largest_under_cap(cap_bytes, parameters):
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ddp_bytes(parameters(64 * middle)) <= cap_bytes else (low, middle)
    return 64 * low


# %% wrong: the_next_one_up
# message: one step too far?
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 64
    while ddp_bytes(parameters(width)) <= cap_bytes:
        width += 64
    return width


# %% wrong: ignores_the_optimizer
# message: Only the weights fit at that width
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 0
    while 4 * parameters(width + 64) <= cap_bytes:
        width += 64
    return width


# %% wrong: a_loop_without_end
# message: does its loop end?
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 0
    while ddp_bytes(parameters(width + 64)) <= cap_bytes:
        pass
    return width


# %% wrong: not_a_multiple_of_64
# message: not a multiple of 64
def largest_under_cap(cap_bytes: int, parameters) -> int:
    """The largest width, a multiple of 64, whose ddp_bytes are at most cap_bytes; 0 if there is none."""
    width = 0
    while ddp_bytes(parameters(width + 1)) <= cap_bytes:
        width += 1
    return width
