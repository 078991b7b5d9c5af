# %% other: loop
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    names = []
    for place, (name, *sizes, shared) in enumerate(layers):
        is_end = place in (0, len(layers) - 1)
        if not (is_end or shared or any(size % 16 for size in sizes)):
            names.append(name)
    return names


# %% wrong: no_ends
# message: keep their precision
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers
        if in_features % 16 == 0 and out_features % 16 == 0 and not shared
    ]


# %% wrong: ends_of_what_fits
# message: cut before you filter
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers
        if in_features % 16 == 0 and out_features % 16 == 0 and not shared
    ][1:-1]


# %% wrong: head_in
# message: because it makes the logits
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:]
        if in_features % 16 == 0 and out_features % 16 == 0 and not shared
    ]


# %% wrong: columns_only
# message: depth of the product
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if out_features % 16 == 0 and not shared
    ]


# %% wrong: rows_only
# message: in backward it is the depth
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if in_features % 16 == 0 and not shared
    ]


# %% wrong: shared_as_well
# message: A shared weight is in
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if in_features % 16 == 0 and out_features % 16 == 0
    ]


# %% wrong: by_four
# message: multiples of 16
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if in_features % 4 == 0 and out_features % 4 == 0 and not shared
    ]


# %% wrong: by_eight
# message: Multiples of 8 will not do
def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if in_features % 8 == 0 and out_features % 8 == 0 and not shared
    ]
