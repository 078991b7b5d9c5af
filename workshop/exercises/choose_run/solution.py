from workshop.facts.units import format_bytes, format_seconds


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
        smallest, room = (format_bytes(size, binary=False) for size in (fewest, cap))
        quickest, time = (format_seconds(seconds) for seconds in (fastest, deadline))
        raise ValueError(
            f"no candidate is possible with a margin of {margin:.0%}: the smallest takes "
            f"{smallest} (cap {room}), the fastest {quickest} (deadline {time})"
        )
    return min(possible, key=lambda c: c["ranks"] * c["seconds"])
