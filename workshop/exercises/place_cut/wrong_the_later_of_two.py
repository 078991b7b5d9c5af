def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages: the slower one shall be fastest."""
    return min(range(len(costs) - 1, 0, -1), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))
