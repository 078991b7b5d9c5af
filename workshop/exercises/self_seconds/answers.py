# %% other: looks_for_the_parent
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


# %% wrong: total_time
# message: total time
def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = own.get(name, 0.0) + (end - start)
        open_ones.append((name, start, end))
    return own


# %% wrong: everything_below
# message: taken away twice
def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = own.get(name, 0.0) + (end - start)
        for outer, _, _ in open_ones:
            own[outer] -= end - start
        open_ones.append((name, start, end))
    return own


# %% wrong: from_the_outermost
# message: not from the outermost
def self_seconds(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Seconds by name, each second counted for the innermost event only."""
    own = {}
    open_ones = []  # the events that we are inside of, outermost first
    for name, start, end in events:
        while open_ones and open_ones[-1][2] <= start:
            open_ones.pop()
        own[name] = own.get(name, 0.0) + (end - start)
        if open_ones:
            own[open_ones[0][0]] -= end - start
        open_ones.append((name, start, end))
    return own


# %% wrong: overwrites
# message: only its last event
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
