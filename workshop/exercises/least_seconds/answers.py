# %% other: by_the_rate
def least_seconds(flops, moved_bytes, peak, bandwidth):
    intensity = flops / moved_bytes
    return flops / min(peak, bandwidth * intensity)


# %% wrong: shorter
# message: the shorter of the two times
def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return min(flops / peak, moved_bytes / bandwidth)


# %% wrong: one_after_the_other
# message: That is one after the other
def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return flops / peak + moved_bytes / bandwidth


# %% wrong: arithmetic_alone
# message: The bytes may take longer
def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return flops / peak


# %% wrong: bytes_alone
# message: The FLOPs may take longer
def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return moved_bytes / bandwidth


# %% wrong: the_rate
# message: That is the rate
def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return min(peak, bandwidth * flops / moved_bytes)
