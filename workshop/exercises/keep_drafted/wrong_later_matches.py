def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = [guess for guess, own in zip(drafted, chosen, strict=False) if guess == own]
    return [*kept, chosen[len(kept)]]
