# %% other: loop
def place_cut(costs: list[float]) -> int:
    best, first = 1, 0.0
    slowest = float("inf")
    for cut in range(1, len(costs)):
        first += costs[cut - 1]
        slower = max(first, sum(costs) - first)
        if slower < slowest:
            best, slowest = cut, slower
    return best


# %% wrong: by_number
# message: pieces are not alike
def place_cut(costs: list[float]) -> int:
    return len(costs) // 2


# %% wrong: where_half_is_reached
# message: leaves a stage without a piece
def place_cut(costs: list[float]) -> int:
    total, pieces = 0.0, 0
    while 2 * total < sum(costs):
        total += costs[pieces]
        pieces += 1
    return pieces


# %% wrong: where_half_is_reached_but_one_piece_left
# message: One piece less may be nearer
def place_cut(costs: list[float]) -> int:
    total, pieces = 0.0, 0
    while 2 * total < sum(costs):
        total += costs[pieces]
        pieces += 1
    return min(pieces, len(costs) - 1)


# %% wrong: the_later_of_two
# message: An earlier cut
def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages: the slower one shall be fastest."""
    return min(range(len(costs) - 1, 0, -1), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))


# %% wrong: the_worst_cut
# message: can be faster
def place_cut(costs: list[float]) -> int:
    """Pieces of the first of two stages: the slower one shall be fastest."""
    return max(range(1, len(costs)), key=lambda cut: max(sum(costs[:cut]), sum(costs[cut:])))
