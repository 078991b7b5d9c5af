def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return list(drafted[: kept + 1]) if kept < len(drafted) else list(chosen)
