def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    length = len(header)
    begins = [i for i in range(length, len(tokens)) if tokens[i - length : i] == header]
    labels = [-100] * len(tokens)
    for begin in begins[:1]:
        rest = tokens[begin:]
        stop = begin + (rest.index(end) + 1 if end in rest else len(rest))
        labels[begin:stop] = tokens[begin:stop]
    return labels
