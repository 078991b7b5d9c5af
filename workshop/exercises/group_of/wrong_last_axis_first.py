from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    after = list(sizes)[list(sizes).index(axis) + 1 :]
    step = prod(sizes[name] for name in after)
    place = rank // step % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))
