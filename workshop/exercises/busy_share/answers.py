# %% other: counts_open_spans
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


# %% wrong: adds_the_lengths
# message: counts once
def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    for start, stop in spans:
        start, stop = max(start, begin), min(stop, end)
        if stop > start:
            busy += stop - start
    return busy / (end - begin)


# %% wrong: counts_beyond_the_window
# message: Only what lies inside
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


# %% wrong: idle
# message: idle share
def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    reached = begin  # all that lies before has been counted
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            busy += stop - start
            reached = stop
    return 1 - busy / (end - begin)


# %% wrong: its_own_window
# message: divide by the window
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


# %% wrong: goes_back
# message: never go back
def busy_share(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    """Share of the window in which at least one span is open."""
    busy = 0.0
    reached = begin  # all that lies before has been counted
    for start, stop in sorted(spans):
        start, stop = max(start, begin), min(stop, end)
        if stop > start:
            busy += max(stop - max(start, reached), 0)
            reached = stop
    return busy / (end - begin)
