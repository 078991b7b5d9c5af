def choose_run(candidates, cap, deadline, margin):
    """Divides the limits, and walks from the cheapest candidate to the dearest."""
    cap, deadline = cap / (1 + margin), deadline / (1 + margin)
    for c in sorted(candidates, key=lambda c: c["seconds"] * c["ranks"]):
        if c["bytes"] <= cap and c["seconds"] <= deadline:
            return c
    raise ValueError(
        "no candidate stays under the cap and meets the deadline; ask for less, or for more ranks"
    )
