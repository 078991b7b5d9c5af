def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    for start, stop in spans:
        start, stop = max(start, begin), min(stop, end)
        if stop > start:
            busy += stop - start
    return busy / (end - begin)
