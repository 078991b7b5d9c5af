def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = max(history) / largest
    history = [*history, amax][-length:]
    return scale, history
