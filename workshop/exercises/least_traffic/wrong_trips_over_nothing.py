def least_traffic(choices: list[tuple[str, int, int]], cap_bytes: int) -> str | None:
    """The name of the choice that fits under the cap and sends least; None if none fits."""
    fitting = [(sent, peak, name) for name, peak, sent in choices if peak <= cap_bytes]
    return min(fitting)[-1]
