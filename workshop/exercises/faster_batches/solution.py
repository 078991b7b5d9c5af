def batches(text, encode, starts):
    """For each row of starts, the windows of 65 tokens that begin there."""
    tokens = encode(text)
    for row in starts:
        yield [tokens[start : start + 65] for start in row]
