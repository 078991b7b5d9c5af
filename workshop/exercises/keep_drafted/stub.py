def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while ...:
        kept += 1
    return ...
