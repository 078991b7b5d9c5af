"""Exercise: which tokens are computed in a step, when prompts are long and the budget is not."""
