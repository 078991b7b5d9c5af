def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return [*drafted[:kept], chosen[kept]][: len(drafted) or 1]
