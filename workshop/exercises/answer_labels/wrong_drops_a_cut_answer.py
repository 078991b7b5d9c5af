def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    length, labels = len(header), [-100] * len(tokens)
    for begin in range(length, len(tokens)):
        if tokens[begin - length : begin] == header and end in tokens[begin:]:
            stop = tokens.index(end, begin) + 1
            labels[begin:stop] = tokens[begin:stop]
    return labels
