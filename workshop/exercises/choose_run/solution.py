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
        fewest = min(c["bytes"] for c in candidates)
        fastest = min(c["seconds"] for c in candidates)
        raise ValueError(
            f"nothing fits: {fewest:.3g} bytes of {cap:.3g} at least, "
            f"{fastest:.3g} s of {deadline:.3g} at least, and a margin of {margin:.0%}"
        )
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])
