"""Shard a small GPT with the learner's `is_unit`, take two steps, and count the gathers of the second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from workshop.exercises.engine.group import join, line_of_wait
from workshop.launch.report import report
from workshop.measure import comms
from workshop.models.gpt import GPT, GPTConfig
from workshop.parallel.fsdp import shard_model

CONFIG = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=96
)


class Gathers(TorchDispatchMode):
    """Notes the bytes of every gathered tensor while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; if it gathers, note how much."""
        if func.namespace in comms.NAMESPACES:
            call = comms.describe(func, args, kwargs or {})
            if call is not None and call.name == "all_gather":
                self.sizes.append(call.payload_bytes)
        return func(*args, **(kwargs or {}))


def try_on_rank(is_unit: Callable[[Any], bool]) -> None:
    """Report sizes of the model's parts, and number and sizes of the gathers of one step."""
    join()
    model = GPT(CONFIG)
    layer_bytes = _bytes(model.model.layers[0])
    model_bytes = _bytes(model)
    in_units = {p for m in model.modules() if m is not model and is_unit(m) for p in m.parameters()}
    root_bytes = sum(p.nbytes for p in model.parameters() if p not in in_units)
    reported: dict[str, Any] = {
        "waited_at": None, "error": "", "num_layers": CONFIG.num_layers, "layer_bytes": layer_bytes,
        "model_bytes": model_bytes, "root_bytes": root_bytes,
    }  # fmt: skip
    sizes: list[int] = []
    try:
        reported["waited_at"] = line_of_wait(_two_steps, model, is_unit, sizes)
    except ValueError as error:
        reported["error"] = f"{error}."
    if sizes:
        reported |= {"num_gathers": len(sizes), "largest_bytes": max(sizes), "smallest_bytes": min(sizes)}
    report(check=reported)


def _bytes(module: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _two_steps(model: GPT, is_unit: Callable[[Any], bool], sizes: list[int]) -> None:
    """The first step sets FSDP up; gathers are noted in the second."""
    shard_model(model, wrap=is_unit)
    tokens = torch.randint(CONFIG.vocab_size, (2, 8))
    model(tokens, tokens).backward()
    with Gathers() as noted:
        model(tokens, tokens).backward()
    sizes += noted.sizes
    dist.barrier()
