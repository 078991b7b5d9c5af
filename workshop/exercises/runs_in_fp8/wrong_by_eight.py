def runs_in_fp8(layers: list[tuple[str, int, int, bool]]) -> list[str]:
    """Names of those that may run in FP8; (name, in_features, out_features, shared)."""
    return [
        name
        for name, in_features, out_features, shared in layers[1:-1]
        if in_features % 8 == 0 and out_features % 8 == 0 and not shared
    ]
