import numpy as np


def batches(text, encode, starts):
    tokens = np.array(encode(text))
    for row in starts:
        yield [tokens[start : start + 65] for start in row]
