def batches(text, encode, starts):
    for row in starts:
        tokens = encode(text)
        yield [tokens[start : start + 65] for start in row]
