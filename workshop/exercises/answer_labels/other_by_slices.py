import numpy as np


def answer_labels(tokens, header, end):
    tokens, labels = np.array(tokens, int), np.full(len(tokens), -100)
    for begin in range(len(header), len(tokens)):
        if tokens[begin - len(header) : begin].tolist() == list(header):
            stops = begin + np.flatnonzero(tokens[begin:] == end)
            stop = stops[0] + 1 if len(stops) else len(tokens)
            labels[begin:stop] = tokens[begin:stop]
    return labels
