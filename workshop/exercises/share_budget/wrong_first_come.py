def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    shares = []
    for want in wants:
        shares.append(min(want, budget - sum(shares)))
    return shares
