def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = budget - sum(want == 1 for want in wants)
    shares = []
    for want in wants:
        shares.append(1 if want == 1 else min(want, left))
        left -= 0 if want == 1 else shares[-1]
    return shares
