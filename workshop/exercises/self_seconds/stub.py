def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = own.get(name, 0.0) + ...
        if open_ones:
            ...
        open_ones.append((name, start, end))
    return own
