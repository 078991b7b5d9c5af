def place_cut(costs: list[float]) -> int:
    return len(costs) // 2
