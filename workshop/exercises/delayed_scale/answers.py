# %% other: deque
from collections import deque


def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    kept = deque(history, maxlen=length)
    scale = max(history) / largest
    kept.append(amax)
    return scale, list(kept)


# %% wrong: current_scaling
# message: current scaling
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = amax / largest
    history = [*history, amax][-length:]
    return scale, history


# %% wrong: this_one_too
# message: before the tensor is
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = max([*history, amax]) / largest
    history = [*history, amax][-length:]
    return scale, history


# %% wrong: upside_down
# message: Upside down
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = largest / max(history)
    history = [*history, amax][-length:]
    return scale, history


# %% wrong: newest_alone
# message: The newest alone
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = history[-1] / largest
    history = [*history, amax][-length:]
    return scale, history


# %% wrong: mean
# message: too small for half
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = sum(history) / len(history) / largest
    history = [*history, amax][-length:]
    return scale, history


# %% wrong: only_grows
# message: only grows
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = max(history) / largest
    history = [*history, amax]
    return scale, history


# %% wrong: keeps_the_oldest
# message: The oldest are kept
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = max(history) / largest
    history = [*history, amax][:length]
    return scale, history


# %% wrong: remembers_nothing
# message: not remembered
def delayed_scale(history: list[float], amax: float, length: int, largest: float) -> tuple[float, list]:
    """This step's scale, from the past alone, and the history for the next step."""
    scale = max(history) / largest
    history = list(history)
    return scale, history
