def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    yielded = []
    for place, own in enumerate(chosen):
        yielded.append(own)
        if place == len(drafted) or drafted[place] != own:
            break
    return yielded
