def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    return list(chosen)
