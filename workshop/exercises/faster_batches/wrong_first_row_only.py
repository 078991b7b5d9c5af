def batches(text, encode, starts):
    tokens = encode(text)
    return [[tokens[start : start + 65] for start in starts[0]]]
