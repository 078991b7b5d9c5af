def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Walk over all borders in time, and count how many spans are open between two of them."""
    changes = [(start, 1) for start, _ in spans] + [(stop, -1) for _, stop in spans]
    busy, num_open, before = 0.0, 0, begin
    for time, change in sorted(changes):
        now = min(max(time, begin), end)
        if num_open:
            busy += now - before
        num_open += change
        before = now
    return busy / (end - begin)
