def place_cut(costs: list[float]) -> int:
    total, pieces = 0.0, 0
    while 2 * total < sum(costs):
        total += costs[pieces]
        pieces += 1
    return pieces
