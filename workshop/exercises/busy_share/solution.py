def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    reached = begin  # all that lies before has been counted
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            busy += stop - start
            reached = stop
    return busy / (end - begin)
