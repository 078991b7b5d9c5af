def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        if tokens[max(0, i - len(header)) : i] == header:
            answering = True
        if tokens[i] == end:
            answering = False
        labels.append(tokens[i] if answering else -100)
    return labels
