"""A workshop on training models that do not fit, run for real on the ranks you have.

Every lesson walks the same four lines::

    run = Run(model="gpt-30m", cluster="this-machine", layout=Layout(shard=4, zero=3), micro_batch=4)  # want
    expected = predict_memory(run)                                                                  # expect
    measured = train(run)                                                                           # happen
    compare(expected, measured)                                                                     # look

You say what you want, you write down what you expect, you let it happen on real processes (gloo ranks on a
laptop, NCCL ranks on GPUs, the same call), and you look at both side by side.

In a notebook, ``%load_ext workshop`` gives you the parallel cells::

    %%torchrun -n 4      fresh ranks: the cell is the program that torchrun would start
    %%ranks -n 4         ranks that stay: variables live from cell to cell

Importing this package is cheap: no torch, numpy, matplotlib or IPython. The public names below are loaded
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> "module:attribute". Written as text, so that import rules see each room by itself.
# `measure` and `rehearse` are rooms that can be called: `rehearse(...)` is `rehearse.rehearse(...)`.
_PUBLIC = {
    "Adapter": "workshop.facts.run:Adapter",
    "Interval": "workshop.predict.interval:Interval",
    "Layout": "workshop.facts.layout:Layout",
    "ModelSpec": "workshop.facts.model:ModelSpec",
    "Run": "workshop.facts.run:Run",
    "Serving": "workshop.facts.serving:Serving",
    "compare": "workshop.train.comparison:compare",
    "doctor": "workshop.doctor:diagnose",
    "launch": "workshop.launch",
    "measure": "workshop.measure",
    "memory_explorer": "workshop.jupyter.widgets:memory_explorer",
    "pipeline_explorer": "workshop.jupyter.widgets:pipeline_explorer",
    "plan": "workshop.predict.plan:plan",
    "predict_memory": "workshop.predict.memory:predict_memory",
    "predict_serving": "workshop.predict.serving:predict_serving",
    "predict_step": "workshop.predict.time.step:predict_step",
    "predict_traffic": "workshop.predict.traffic:predict_traffic",
    "rehearse": "workshop.rehearse",
    "report": "workshop.launch.report:report",
    "show": "workshop.show",
    "simulate_pipeline": "workshop.predict.pipeline:simulate_pipeline",
    "solution": "workshop.exercises:solution",
    "time_to_train": "workshop.jupyter.widgets:time_to_train",
    "train": "workshop.train",
}

__all__ = ["__version__", "load_ipython_extension", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load a public name on first use and remember it."""
    target = _PUBLIC.get(name)
    if target is None:
        raise AttributeError(
            f"module 'workshop' has no attribute {name!r}; it has {', '.join(sorted(_PUBLIC))}"
        )
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Names for tab completion, also those not loaded yet."""
    return sorted({*globals(), *__all__})


def load_ipython_extension(ip: Any) -> None:
    """Register the magics; IPython calls this for ``%load_ext workshop``."""
    importlib.import_module("workshop.jupyter").load(ip)
