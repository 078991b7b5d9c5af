def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    possible = [...]
    if not possible:
        raise ValueError(...)
    return ...
