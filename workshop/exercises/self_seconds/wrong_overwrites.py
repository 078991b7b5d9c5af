def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = end - start
        if open_ones:
            own[open_ones[-1][0]] -= end - start
        open_ones.append((name, start, end))
    return own
