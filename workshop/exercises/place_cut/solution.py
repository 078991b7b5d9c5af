def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages, such that the slower stage is as fast as possible."""
    return min(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))
