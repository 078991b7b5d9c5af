def compute_optimal(flops, a, b, alpha, beta):
    """Parameters of the model that makes the most of so many FLOPs."""
    sizes = [10 ** (step / 1000) for step in range(15_000)]
    return min(sizes, key=lambda n: a / n**alpha + b / (flops / 6 / n) ** beta)
