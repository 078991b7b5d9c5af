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
