def batches(text, encode, starts):
    for row in starts:
        yield [encode(text)[start : start + 65] for start in row]
