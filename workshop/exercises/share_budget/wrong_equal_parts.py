def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = budget - sum(want == 1 for want in wants)
    prompts = sum(want > 1 for want in wants)
    return [1 if want == 1 else min(want, left // prompts) for want in wants]
