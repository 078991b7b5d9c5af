def axis_order(sent: dict[str, float], sizes: dict[str, int], per_node: int) -> tuple[str, ...]:
    return tuple(sorted(sent, key=lambda axis: sizes[axis]))
