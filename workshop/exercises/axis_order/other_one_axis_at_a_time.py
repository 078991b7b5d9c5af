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
