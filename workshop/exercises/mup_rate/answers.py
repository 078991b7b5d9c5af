# %% other: asks_the_matrix
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    adds_up = len(shape) == 2 and name != "model.embed_tokens.weight"
    return rate / (width / base_width if adds_up else 1)


# %% wrong: one_rate
# message: as if nothing were added up
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1 or "embed" in name:
        return rate
    return rate


# %% wrong: also_the_embedding
# message: picks one row
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1:
        return rate
    return rate * base_width / width


# %% wrong: also_norms
# message: multiplies each number
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if "embed" in name:
        return rate
    return rate * base_width / width


# %% wrong: by_the_root
# message: Noise would
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1 or "embed" in name:
        return rate
    return rate * (base_width / width) ** 0.5


# %% wrong: upside_down
# message: rate grows with the width
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1 or "embed" in name:
        return rate
    return rate * width / base_width


# %% wrong: by_all_inputs
# message: inputs grow in proportion
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1 or "embed" in name:
        return rate
    return rate * base_width / shape[1]


# %% wrong: forgets_the_head
# message: The head is a matrix like the others
def mup_rate(name, shape, rate, width, base_width):
    """Adam's rate for this parameter; `rate` was tuned at `base_width`."""
    if len(shape) == 1 or "embed" in name or "head" in name:
        return rate
    return rate * base_width / width
