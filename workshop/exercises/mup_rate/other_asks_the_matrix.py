def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    adds_up = len(shape) == 2 and name != "model.embed_tokens.weight"
    return rate / (width / base_width if adds_up else 1)
