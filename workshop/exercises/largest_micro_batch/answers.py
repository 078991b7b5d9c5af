# %% other: divisors
def largest_micro_batch(memory_bytes, state_bytes, layer_bytes, num_layers, logits_bytes, batch):
    each = num_layers * layer_bytes + logits_bytes
    divisors = (size for size in range(1, batch + 1) if batch % size == 0)
    return max((size for size in divisors if state_bytes + size * each <= memory_bytes), default=0)


# %% wrong: forgets_the_state
# message: The state takes its room first
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes + logits_bytes
    fitting = int(memory_bytes // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)


# %% wrong: one_layer
# message: That is one layer
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = layer_bytes + logits_bytes
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)


# %% wrong: forgets_the_logits
# message: The logits take room
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)


# %% wrong: logits_in_each_layer
# message: once for a sequence
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * (layer_bytes + logits_bytes)
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)


# %% wrong: leaves_a_rest
# message: cannot be cut into equal micro-batches
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes + logits_bytes
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    return max(0, fitting)


# %% wrong: below_zero
# message: not a negative number
def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes + logits_bytes
    fitting = int((memory_bytes - state_bytes) // one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return fitting


# %% wrong: rounds_up
# message: Rounded up
import math


def largest_micro_batch(
    memory_bytes: int,
    state_bytes: int,
    layer_bytes: float,
    num_layers: int,
    logits_bytes: int,
    batch: int,
) -> int:
    """The most sequences at once that fit and divide `batch`; 0 where none fits."""
    one_sequence = num_layers * layer_bytes + logits_bytes
    fitting = math.ceil((memory_bytes - state_bytes) / one_sequence)
    fitting = min(fitting, batch)
    while fitting > 0 and batch % fitting:
        fitting -= 1
    return max(0, fitting)
