def delayed_scale(
    history: list[float], amax: float, length: int, largest: float
) -> tuple[float, list]:
    """The scale of this step, from the past alone, and the history that the next step sees."""
    scale = ...
    history = ...
    return scale, history
