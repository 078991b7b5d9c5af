def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    step = 1
    place = rank % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))
