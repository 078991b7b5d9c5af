def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    inside = sorted(
        (max(start, begin), min(stop, end)) for start, stop in spans if start < end and stop > begin
    )
    if not inside:
        return 0.0
    busy = 0.0
    first = reached = inside[0][0]
    for start, stop in inside:
        if stop > reached:
            busy += stop - max(start, reached)
            reached = stop
    return busy / (reached - first)
