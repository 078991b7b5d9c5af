def least_seconds(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that an operator takes at least: it computes while it moves."""
    return max(flops / peak, moved_bytes / bandwidth)
