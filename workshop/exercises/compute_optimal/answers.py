# %% other: by_search
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    sizes = [10 ** (step / 1000) for step in range(15_000)]
    return min(sizes, key=lambda n: a / n**alpha + b / (flops / 6 / n) ** beta)


# %% wrong: forgets_the_six
# message: 6 FLOPs
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    ratio = alpha * a / (beta * b) * (flops) ** beta
    return ratio ** (1 / (alpha + beta))


# %% wrong: equal_terms
# message: derivatives
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    ratio = a / b * (flops / 6) ** beta
    return ratio ** (1 / (alpha + beta))


# %% wrong: returns_tokens
# message: tokens
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    ratio = alpha * a / (beta * b) * (flops / 6) ** beta
    return flops / 6 / ratio ** (1 / (alpha + beta))


# %% wrong: half_each
# message: half
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    return (flops / 6) ** 0.5


# %% wrong: forgets_the_root
# message: root
def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    return alpha * a / (beta * b) * (flops / 6) ** beta
