def batches(text, encode, starts):
    tokens = encode(text)
    for row in starts:
        yield [tokens[start : start + 64] for start in row]
