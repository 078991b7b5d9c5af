# %% other: only_chosen
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    yielded = []
    for place, own in enumerate(chosen):
        yielded.append(own)
        if place == len(drafted) or drafted[place] != own:
            break
    return yielded


# %% wrong: without_its_own
# message: own choice is missing
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return list(drafted[:kept])


# %% wrong: later_matches
# message: A later guess stays
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = [guess for guess, own in zip(drafted, chosen, strict=False) if guess == own]
    return [*kept, chosen[len(kept)]]


# %% wrong: keeps_the_wrong_one
# message: would not have written
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return list(drafted[: kept + 1]) if kept < len(drafted) else list(chosen)


# %% wrong: nothing_for_free
# message: one more
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == chosen[kept]:
        kept += 1
    return [*drafted[:kept], chosen[kept]][: len(drafted) or 1]


# %% wrong: all_it_chose
# message: chose for another text
def keep_drafted(drafted, chosen):
    """The tokens that this pass of the model yields."""
    return list(chosen)
