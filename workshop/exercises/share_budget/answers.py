# %% other: two_rounds
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    shares = [int(want == 1) for want in wants]
    for place, want in enumerate(wants):
        if want > 1:
            shares[place] = max(0, min(want, budget - sum(shares)))
    return shares


# %% wrong: first_come
# message: waits behind a prompt
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    shares = []
    for want in wants:
        shares.append(min(want, budget - sum(shares)))
    return shares


# %% wrong: over_budget
# message: more than the budget
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left, shares = budget, []
    for want in wants:
        shares.append(1 if want == 1 else min(want, left))
        left -= 0 if want == 1 else shares[-1]
    return shares


# %% wrong: whole_prompts
# message: may be cut
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = budget - sum(want == 1 for want in wants)
    shares = []
    for want in wants:
        shares.append(1 if want == 1 else want * (want <= left))
        left -= 0 if want == 1 else shares[-1]
    return shares


# %% wrong: equal_parts
# message: in order
def share_budget(wants, budget):
    """How many of the tokens that each request wants are computed in this step."""
    left = budget - sum(want == 1 for want in wants)
    prompts = sum(want > 1 for want in wants)
    return [1 if want == 1 else min(want, left // prompts) for want in wants]
