# %% other: bytes
import io
from typing import Any

import torch

PARTS = ("model", "optimizer", "schedule")


def generators() -> list:
    """What has a `get_rng_state` and a `set_rng_state`: torch, and the accelerator's module."""
    return [torch.random, *([torch.get_device_module()] if torch.accelerator.is_available() else [])]


def state_of(run: Any) -> dict:
    """As torch.save would write it: bytes are a copy."""
    state = {part: getattr(run, part).state_dict() for part in PARTS}
    file = io.BytesIO()
    random = [generator.get_rng_state() for generator in generators()]
    torch.save({**state, "position": run.data.position, "random": random}, file)
    return {"file": file.getvalue()}


def go_on(run: Any, state: dict) -> None:
    loaded = torch.load(io.BytesIO(state["file"]))
    for part in PARTS:
        getattr(run, part).load_state_dict(loaded[part])
    run.data.position = loaded["position"]
    for generator, state_then in zip(generators(), loaded["random"], strict=True):
        generator.set_rng_state(state_then)


# %% wrong: no_optimizer
# message: The optimizer's moments are lost
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
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
        "random": random_states(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"][0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["random"][1])


# %% wrong: no_schedule
# message: The schedule begins again
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
        "position": run.data.position,
        "random": random_states(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"][0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["random"][1])


# %% wrong: no_position
# message: The data begin again
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
        "random": random_states(),
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"][0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["random"][1])


# %% wrong: no_random_state
# message: dropout
import copy


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    state = {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
    }
    return copy.deepcopy(state)


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]


# %% wrong: no_copy
# message: Return a copy
import torch


def random_states() -> list[torch.Tensor]:
    """Of the CPU's generator, and of the accelerator's, where dropout on a GPU draws."""
    states = [torch.get_rng_state()]
    if torch.accelerator.is_available():
        states.append(torch.get_device_module().get_rng_state())
    return states


def state_of(run) -> dict:
    """Everything that changes while a run trains, as it is now."""
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "position": run.data.position,
        "random": random_states(),
    }


def go_on(run, state: dict) -> None:
    """Make a fresh run the one that was saved."""
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.schedule.load_state_dict(state["schedule"])
    run.data.position = state["position"]
    torch.set_rng_state(state["random"][0])
    if torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["random"][1])


# %% wrong: saved_but_not_loaded
# message: The weights are not those
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
