def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1:
        return rate
    return rate * base_width / width
