import copy

import torch


def random_states() -> list[torch.Tensor]:
    """Of the CPU's generator, and of the accelerator's, where dropout on a GPU draws."""
    states = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        states.append(torch.get_device_module().get_rng_state())
    return states


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
        "random": random_states(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"][0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["random"][1])
