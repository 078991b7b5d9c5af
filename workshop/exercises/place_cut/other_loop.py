def place_cut(costs: list[float]) -> int:
    best, first = 1, 0.0
    slowest = float("inf")
    for cut in range(1, len(costs)):
        first += costs[cut - 1]
        slower = max(first, sum(costs) - first)
        if slower < slowest:
            best, slowest = cut, slower
    return best
