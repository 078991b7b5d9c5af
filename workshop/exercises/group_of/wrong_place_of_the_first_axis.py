from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    before = list(sizes)[: list(sizes).index(axis)]
    step = prod(sizes[name] for name in before)
    place = rank % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))
