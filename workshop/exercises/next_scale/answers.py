# %% other: one_expression_a_line
def next_scale(scale: float, good_steps: int, finite: bool, interval: int) -> tuple[float, int, bool]:
    good_steps = (good_steps + 1) % interval if finite else 0
    doubled = finite and good_steps == 0
    return scale * (2 if doubled else 1 if finite else 0.5), good_steps, finite


# %% wrong: counts_on
# message: ends the row
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, good_steps, False
    good_steps += 1
    if good_steps == interval:
        return scale * 2, 0, True
    return scale, good_steps, True


# %% wrong: steps_anyway
# message: NaN for good
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, 0, True
    good_steps += 1
    if good_steps == interval:
        return scale * 2, 0, True
    return scale, good_steps, True


# %% wrong: keeps_doubling
# message: every further step doubles
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, 0, False
    good_steps += 1
    if good_steps >= interval:
        return scale * 2, good_steps, True
    return scale, good_steps, True


# %% wrong: one_late
# message: This step is good as well
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, 0, False
    good_steps += 1
    if good_steps > interval:
        return scale * 2, 0, True
    return scale, good_steps, True


# %% wrong: every_step
# message: doubles after each good step
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, 0, False
    return scale * 2, 0, True


# %% wrong: only_falls
# message: only ever falls
def next_scale(
    scale: float,
    good_steps: int,
    finite: bool,
    interval: int,
) -> tuple[float, int, bool]:
    """The next scale, the next count of good steps, and: may the optimizer step?"""
    if not finite:
        return scale / 2, 0, False
    good_steps += 1
    return scale, good_steps, True
