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
