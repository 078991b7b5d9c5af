def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    return list(tokens)
