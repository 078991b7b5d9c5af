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
