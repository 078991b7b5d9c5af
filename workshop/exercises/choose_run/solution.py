def choose_run(
    candidates: list[dict],
    cap: float,
    deadline: float,
    margin: float,
) -> dict:
    """The cheapest candidate that stays under both limits, with a margin."""
    grows = 1 + margin
    small = [c for c in candidates if c["bytes"] * grows <= cap]
    possible = [c for c in small if c["seconds"] * grows <= deadline]
    if not possible:
        fewest = min(c["bytes"] for c in candidates)
        fastest = min(c["seconds"] for c in candidates)
        raise ValueError(
            f"no candidate is possible with a margin of {margin:.0%}: the smallest takes "
            f"{fewest:,.0f} bytes (cap {cap:,.0f}), the fastest {fastest:,.0f} s "
            f"(deadline {deadline:,.0f})"
        )
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])
