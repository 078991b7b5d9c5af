import copy

import torch


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        ...: ...,
    }
    return copy.deepcopy(...)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    ...
