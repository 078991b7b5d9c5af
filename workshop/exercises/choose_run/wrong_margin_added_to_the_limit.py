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
