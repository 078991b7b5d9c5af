def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    names = []
    for place, (name, *sizes, shared) in enumerate(layers):
        is_end = place in (0, len(layers) - 1)
        if not (is_end or shared or any(size % 16 for size in sizes)):
            names.append(name)
    return names
