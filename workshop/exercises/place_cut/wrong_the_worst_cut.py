def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages: the slower one shall be fastest."""
    return max(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))
