# %% other: one_axis_at_a_time
def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    """Try each axis innermost, and the best order of the others around it."""

    def best(axes: frozenset[str], reach: int) -> tuple[float, tuple[str, ...]]:
        if not axes:
            return 0.0, ()
        tried = []
        for axis in axes:
            wider = reach * sizes[axis]
            seconds, outer = best(axes - {axis}, wider)
            tried.append((seconds + sent[axis] / (450e9 if wider <= per_node else 50e9), (axis, *outer)))
        return min(tried)

    return best(frozenset(sent), 1)[1]


# %% wrong: what_talks_most_wherever_it_fits
# message: are larger than a node
def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    return tuple(sorted(sent, key=lambda axis: -sent[axis]))


# %% wrong: what_talks_least
# message: belong to the axis that gains most
def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    return tuple(sorted(sent, key=lambda axis: sent[axis]))


# %% wrong: the_other_way_round
# message: the right way round
from itertools import permutations


def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    """The axes, innermost first, that take least time."""

    def seconds(order: tuple[str, ...]) -> float:
        total, reach = 0.0, 1
        for axis in order:
            reach *= sizes[axis]  # so many neighboring ranks hold a whole group of this axis
            total += sent[axis] / (50e9 if reach <= per_node else 450e9)
        return total

    return min(permutations(sent), key=seconds)


# %% wrong: smallest_first
# message: Smallest first is not the question
def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    return tuple(sorted(sent, key=lambda axis: sizes[axis]))
