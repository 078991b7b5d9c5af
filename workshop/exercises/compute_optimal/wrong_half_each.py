def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    return (flops / 6) ** 0.5
