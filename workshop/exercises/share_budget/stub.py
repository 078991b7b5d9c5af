def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = ...  # budget left after every request that wants one token
    shares = []
    for want in wants:
        ...
    return shares
