def scales_of(x, share, largest):
    size = x.abs()
    if share == "row":
        amax = size.max(dim=1).values[:, None]
    elif share == "column":
        amax = size.max(dim=0).values[None]
    else:
        amax = size.max()
    return (amax / largest).masked_fill(amax == 0, 1.0)
