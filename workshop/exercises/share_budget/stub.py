def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = ...  # behind those that want one token
    shares = []
    for want in wants:
        ...
    return shares
