# %% other: sorted
def choose_run(candidates, cap, deadline, margin):
    """Divides the limits, and walks from the cheapest candidate to the dearest."""
    cap, deadline = cap / (1 + margin), deadline / (1 + margin)
    for c in sorted(candidates, key=lambda c: c["seconds"] * c["ranks"]):
        if c["bytes"] <= cap and c["seconds"] <= deadline:
            return c
    raise ValueError(
        "no candidate stays under the cap and meets the deadline; ask for less, or for more ranks"
    )


# %% wrong: fastest_wins
# message: Ranks cost money too
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [
        c for c in candidates if c["bytes"] * (1 + margin) <= cap and c["seconds"] * (1 + margin) <= deadline
    ]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["seconds"])


# %% wrong: margin_left_out
# message: without the margin
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [c for c in candidates if c["bytes"] <= cap and c["seconds"] <= deadline]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])


# %% wrong: margin_added_to_the_limit
# message: The margin makes the limits tighter
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [
        c for c in candidates if c["bytes"] <= cap * (1 + margin) and c["seconds"] <= deadline * (1 + margin)
    ]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])


# %% wrong: margin_only_for_memory
# message: The time is a prediction too
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [c for c in candidates if c["bytes"] * (1 + margin) <= cap and c["seconds"] <= deadline]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])


# %% wrong: fewest_bytes_win
# message: fewest bytes
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [
        c for c in candidates if c["bytes"] * (1 + margin) <= cap and c["seconds"] * (1 + margin) <= deadline
    ]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["bytes"])


# %% wrong: deadline_left_out
# message: deadline is missing
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [c for c in candidates if c["bytes"] * (1 + margin) <= cap]
    if not possible:
        raise ValueError("no candidate stays under the cap and meets the deadline")
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])


# %% wrong: nothing_is_returned
# message: it gave None
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [
        c for c in candidates if c["bytes"] * (1 + margin) <= cap and c["seconds"] * (1 + margin) <= deadline
    ]
    if not possible:
        return None
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])


# %% wrong: least_bad_is_launched
# message: must not start
def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [
        c for c in candidates if c["bytes"] * (1 + margin) <= cap and c["seconds"] * (1 + margin) <= deadline
    ]
    if not possible:
        possible = candidates
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])
