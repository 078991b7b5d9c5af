def next_scale(scale: float, good_steps: int, finite: bool, interval: int) -> tuple[float, int, bool]:
    good_steps = (good_steps + 1) % interval if finite else 0
    doubled = finite and good_steps == 0
    return scale * (2 if doubled else 1 if finite else 0.5), good_steps, finite
