# %% other: by_slices
import numpy as np


def answer_labels(tokens, header, end):
    tokens, labels = np.array(tokens, int), np.full(len(tokens), -100)
    for begin in range(len(header), len(tokens)):
        if tokens[begin - len(header) : begin].tolist() == list(header):
            stops = begin + np.flatnonzero(tokens[begin:] == end)
            stop = stops[0] + 1 if len(stops) else len(tokens)
            labels[begin:stop] = tokens[begin:stop]
    return labels


# %% wrong: everything
# message: The user's words are learned as well
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    return list(tokens)


# %% wrong: the_header_too
# message: The header is learned as well
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        if tokens[i : i + len(header)] == header:
            answering = True
        labels.append(tokens[i] if answering else -100)
        if tokens[i] == end:
            answering = False
    return labels


# %% wrong: never_stops
# message: The end of an answer is not learned
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


# %% wrong: shifted
# message: one place to the left
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        if tokens[max(0, i - len(header)) : i] == header:
            answering = True
        labels.append(tokens[i] if answering else -100)
        if tokens[i] == end:
            answering = False
    return [*labels[1:], -100]


# %% wrong: only_the_last
# message: Only the last answer
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    length = len(header)
    begins = [i for i in range(length, len(tokens)) if tokens[i - length : i] == header]
    labels = [-100] * len(tokens)
    for begin in begins[-1:]:
        rest = tokens[begin:]
        stop = begin + (rest.index(end) + 1 if end in rest else len(rest))
        labels[begin:stop] = tokens[begin:stop]
    return labels


# %% wrong: only_the_first
# message: Only the first answer
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


# %% wrong: to_the_end_of_the_row
# message: after an answer's end
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        if tokens[max(0, i - len(header)) : i] == header:
            answering = True
        labels.append(tokens[i] if answering else -100)
    return labels


# %% wrong: drops_a_cut_answer
# message: was cut off
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    length, labels = len(header), [-100] * len(tokens)
    for begin in range(length, len(tokens)):
        if tokens[begin - length : begin] == header and end in tokens[begin:]:
            stop = tokens.index(end, begin) + 1
            labels[begin:stop] = tokens[begin:stop]
    return labels


# %% wrong: zero_for_nothing
# message: 0 is a token
def answer_labels(tokens: list[int], header: list[int], end: int) -> list[int]:
    """The tokens of the answers, each with its end; -100 for all others."""
    labels, answering = [], False
    for i in range(len(tokens)):
        if tokens[max(0, i - len(header)) : i] == header:
            answering = True
        labels.append(tokens[i] if answering else 0)
        if tokens[i] == end:
            answering = False
    return labels
