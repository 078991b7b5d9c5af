def starts_needed(work: int, limit: int, start: int, every: int) -> int:
    """Starts until `work` seconds of training are done; 0 if they never are."""
    trains = limit - start  # seconds of training in one start
    kept = trains // every * every  # of them, what the next start finds saved
    starts = 1
    while work > trains:
        if kept <= 0:
            return 0
        work -= kept
        starts += 1
    return starts
