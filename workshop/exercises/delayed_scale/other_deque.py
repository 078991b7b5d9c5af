from collections import deque


def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    kept = deque(history, maxlen=length)
    scale = max(history) / largest
    kept.append(amax)
    return scale, list(kept)
