def batches(text, encode, starts):
    tokens = encode(text)
    for row in starts:
        yield tokens[row[0] : row[0] + 65]
