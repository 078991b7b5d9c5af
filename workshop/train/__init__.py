"""Happen: train a run on real ranks.

    from workshop.train import train

    measured = train(run)            # gloo ranks on a laptop, NCCL ranks on GPUs

From the inside out: `loop` is the training loop, to be read from top to bottom; `apply_layout` makes a model
ready for it, cut as a layout says; `settings` says without torch how to train, which engine does, and what is
refused; `cut_model` and `ready_cut` are for models cut by tensor, pipeline or context; `optimizers` and
`recompute` are choices by name;
`checkpoint` saves and resumes exactly; `log` keeps numbers; `launched` starts ranks and brings back what they
measured; `comparison` puts that beside a prediction.

This package's front door does not import torch; the ranks do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workshop.train.checkpoint import Checkpoints as Checkpoints
    from workshop.train.comparison import compare as compare
    from workshop.train.launched import Trained as Trained
    from workshop.train.launched import train as train
    from workshop.train.loop import train_loop as train_loop
    from workshop.train.settings import Settings as Settings

_HOMES = {
    "Checkpoints": "workshop.train.checkpoint",
    "Settings": "workshop.train.settings",
    "Trained": "workshop.train.launched",
    "compare": "workshop.train.comparison",
    "train": "workshop.train.launched",
    "train_loop": "workshop.train.loop",
}
__all__ = [
    "Checkpoints",
    "Settings",
    "Trained",
    "compare",
    "train",
    "train_loop",
]


def __getattr__(name: str) -> Any:
    """Import a name, and with it torch where it needs torch, only when somebody asks for it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


class _Room(ModuleType):
    """Makes the package callable: its name is also what `from workshop import` gives for the function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.train(*args, **options)


sys.modules[__name__].__class__ = _Room
