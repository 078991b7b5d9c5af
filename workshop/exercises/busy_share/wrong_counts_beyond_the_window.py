def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    reached = float("-inf")
    for start, stop in sorted(spans):
        start = max(start, reached)
        if stop > start:
            busy += stop - start
            reached = stop
    return busy / (end - begin)
