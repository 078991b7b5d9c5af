def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    ratio = alpha * a / (beta * b) * (flops / 6) ** beta
    return ratio ** (1 / (alpha + beta))
