import copy

import torch


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
        "random": torch.get_rng_state(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"])
