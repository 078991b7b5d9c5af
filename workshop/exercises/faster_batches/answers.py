# %% other: a_list_of_rows
def batches(text, encode, starts):
    tokens = encode(text)
    return [[tokens[start : start + 65] for start in row] for row in starts]


# %% other: arrays
import numpy as np


def batches(text, encode, starts):
    tokens = np.array(encode(text))
    for row in starts:
        yield [tokens[start : start + 65] for start in row]


# %% other: only_the_windows
def batches(text, encode, starts):
    for row in starts:
        yield [encode(text[start : start + 65]) for start in row]


# %% wrong: every_row
# message: 8 times
def batches(text, encode, starts):
    for row in starts:
        tokens = encode(text)
        yield [tokens[start : start + 65] for start in row]


# %% wrong: every_window
# message: 16 times
def batches(text, encode, starts):
    for row in starts:
        yield [encode(text)[start : start + 65] for start in row]


# %% wrong: first_row_only
# message: 1 of 8 rows
def batches(text, encode, starts):
    tokens = encode(text)
    return [[tokens[start : start + 65] for start in starts[0]]]


# %% wrong: windows_of_64
# message: 64 tokens
def batches(text, encode, starts):
    tokens = encode(text)
    for row in starts:
        yield [tokens[start : start + 64] for start in row]


# %% wrong: one_window
# message: wanted 2 windows of 65 tokens
def batches(text, encode, starts):
    tokens = encode(text)
    for row in starts:
        yield tokens[row[0] : row[0] + 65]
