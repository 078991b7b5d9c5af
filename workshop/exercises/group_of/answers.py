# %% other: by_coordinates
from itertools import product


def group_of(rank, axis, sizes):
    """Write down every rank's place on all axes, and look who differs on this one alone."""
    backwards = [range(sizes[name]) for name in reversed(sizes)]  # the last of a product runs fastest
    places = [dict(zip(reversed(sizes), place, strict=True)) for place in product(*backwards)]
    mine = places[rank]
    return tuple(
        other
        for other, place in enumerate(places)
        if all(place[name] == mine[name] for name in sizes if name != axis)
    )


# %% wrong: always_neighbours
# message: Only on the first axis
def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    step = 1
    place = rank % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))


# %% wrong: last_axis_first
# message: through the last axis first
from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    after = list(sizes)[list(sizes).index(axis) + 1 :]
    step = prod(sizes[name] for name in after)
    place = rank // step % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))


# %% wrong: place_not_folded
# message: goes on counting
from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    before = list(sizes)[: list(sizes).index(axis)]
    step = prod(sizes[name] for name in before)
    place = rank // step
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))


# %% wrong: step_with_its_own_size
# message: its own size
from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    before = list(sizes)[: list(sizes).index(axis) + 1]
    step = prod(sizes[name] for name in before)
    place = rank // step % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))


# %% wrong: place_of_the_first_axis
# message: smallest rank of a group
from math import prod


def group_of(rank: int, axis: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The ranks that differ from this one in their place on this axis alone."""
    before = list(sizes)[: list(sizes).index(axis)]
    step = prod(sizes[name] for name in before)
    place = rank % sizes[axis]
    first = rank - place * step
    return tuple(first + other * step for other in range(sizes[axis]))
