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
