def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    shares = [int(want == 1) for want in wants]
    for place, want in enumerate(wants):
        if want > 1:
            shares[place] = max(0, min(want, budget - sum(shares)))
    return shares
