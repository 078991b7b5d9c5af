def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    """Starts until `work` seconds of training are done; 0 if they never are."""
    trains = limit - start  # seconds of training in one start
    return ...
