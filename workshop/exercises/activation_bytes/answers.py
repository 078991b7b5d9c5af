# %% other: branches
def activation_bytes(seq_len, micro_batch, hidden_size, num_heads, recompute="none"):
    if recompute == "full":
        return 2 * seq_len * micro_batch * hidden_size
    core = 5 * num_heads * seq_len**2 * micro_batch if recompute == "none" else 0
    return 34 * seq_len * micro_batch * hidden_size + core


# %% wrong: no_core
# message: the attention core is kept too
def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    values = seq_len * micro_batch * hidden_size
    each = {"none": 34, "selective": 34, "full": 2}
    return values * each[recompute]


# %% wrong: one_sequence
# message: each keeps its own
def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    values = seq_len * hidden_size
    each = {"none": 34 + 5 * num_heads * seq_len / hidden_size, "selective": 34, "full": 2}
    return values * each[recompute]


# %% wrong: full_keeps_nothing
# message: must begin somewhere
def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    values = seq_len * micro_batch * hidden_size
    each = {"none": 34 + 5 * num_heads * seq_len / hidden_size, "selective": 34, "full": 0}
    return values * each[recompute]


# %% wrong: selective_as_full
# message: the 34 stay
def activation_bytes(
    seq_len: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    recompute: str = "none",
) -> float:
    """Bytes one layer keeps; recompute is "none", "selective" or "full"."""
    values = seq_len * micro_batch * hidden_size
    each = {"none": 34 + 5 * num_heads * seq_len / hidden_size, "selective": 2, "full": 2}
    return values * each[recompute]
