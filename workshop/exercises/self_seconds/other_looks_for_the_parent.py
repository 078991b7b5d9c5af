def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Each event's length goes to its name, and is taken from the last earlier event that encloses it."""
    own = {name: 0.0 for name, _, _ in events}
    for place, (name, start, end) in enumerate(events):
        own[name] += end - start
        for parent, begins, ends in reversed(events[:place]):
            if begins <= start and end <= ends:
                own[parent] -= end - start
                break
    return own
