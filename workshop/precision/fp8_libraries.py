"""FP8 by whichever library, behind one call: by hand, Accelerate's recipes, Transformer Engine.

    model, optimizer, inside = prepare_fp8(model, optimizer, "accelerate-ao")
    with inside():
        loss = model(tokens, targets)
    loss.backward()
    optimizer.step()

by-hand              `fp8_swap.swap`; runs everywhere, emulated on a CPU
accelerate-ao        Accelerate with torchao: current scaling by tensor; keeps the first and last layer
accelerate-te        Accelerate with Transformer Engine: delayed scaling
transformer-engine   Transformer Engine itself: delayed, current by tensor, by block, MX (on Blackwell)

All but the first need a GPU with 8-bit units, and their package.
8-bit units for floating point came with compute capability 8.9 (Ada; Hopper has 9.0, Blackwell 10.0). The
paths through Accelerate 1.15 and torchao 0.18 trained on an H200 (tests/gpu/test_precision.py); those through
Transformer Engine 2.x have not been run. Without such a GPU, each says so before it imports anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from workshop.facts.checks import check_choice
from workshop.precision.fp8 import Recipe
from workshop.precision.fp8_swap import swap

LIBRARIES = ("by-hand", "accelerate-ao", "accelerate-te", "transformer-engine")
Prepared = tuple[nn.Module, torch.optim.Optimizer, Callable[[], AbstractContextManager[Any]]]


class Unavailable(RuntimeError):
    """A library or the device it needs is not there; the sentence says which, and what to do."""


def why_not(through: str) -> str:
    """Why a library cannot run here, a sentence; "" if it can, as far as one can tell without running it."""
    check_choice("through", through, LIBRARIES)
    if through == "by-hand":
        return ""
    if not torch.cuda.is_available():
        return (
            f"{through} needs a GPU with 8-bit units, and there is none here: take 'by-hand', which emulates"
        )
    if (have := torch.cuda.get_device_capability()) < (8, 9):
        return (
            f"{through} needs compute capability 8.9 or higher (Ada, Hopper, Blackwell), and this GPU has "
            f"{have[0]}.{have[1]}: take 'by-hand', which emulates"
        )
    return _missing("torchao" if through == "accelerate-ao" else "transformer_engine")


def _missing(package: str) -> str:
    """Why a package is not usable; an index may serve an empty stand-in of version 0.0.0 for it."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        return f"{package} is not installed: pip install {package}"
    if installed == "0.0.0":
        return (
            f"{package} 0.0.0 is an empty placeholder that pip chose where no wheel fits: install it as "
            "NVIDIA's documentation says, from source or in one of its containers"
        )
    return ""


def prepare_fp8(
    model: nn.Module, optimizer: torch.optim.Optimizer, through: str = "by-hand", recipe: Recipe | None = None
) -> Prepared:
    """A model whose linear layers run in FP8, its optimizer, and what forward runs inside.

    recipe: for "by-hand" and "transformer-engine"; Accelerate's recipes are its own. Raises Unavailable where
    the library cannot run, ValueError for a scaling that Transformer Engine does not have.
    """
    recipe = recipe or Recipe()
    if reason := why_not(through):
        raise Unavailable(reason)
    if through == "by-hand":
        swap(model, recipe)
        return model, optimizer, nullcontext
    if through.startswith("accelerate"):
        return _by_accelerate(model, optimizer, through)
    return _by_transformer_engine(model, optimizer, recipe)


def _by_accelerate(model: nn.Module, optimizer: torch.optim.Optimizer, through: str) -> Prepared:
    from accelerate import Accelerator
    from accelerate.utils import AORecipeKwargs, TERecipeKwargs

    kwargs = AORecipeKwargs() if through == "accelerate-ao" else TERecipeKwargs(fp8_format="HYBRID")
    accelerator = Accelerator(mixed_precision="fp8", kwargs_handlers=[kwargs])
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, accelerator.autocast


def _by_transformer_engine(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> Prepared:
    from accelerate.utils import convert_model

    te_recipe = transformer_engine_recipe(recipe)
    import transformer_engine.pytorch as te

    with torch.no_grad():
        convert_model(model, _convert_ln=False)  # te.Linear, weights copied: the optimizer needs the new ones
    made = type(optimizer)(model.parameters(), **optimizer.defaults)
    return model, made, partial(_inside_transformer_engine, te, te_recipe)


@contextmanager
def _inside_transformer_engine(te: Any, te_recipe: Any) -> Iterator[None]:
    """FP8 for the layers of Transformer Engine, and bf16 for what lies between them: without it their inputs
    and outputs stay fp32. `te.autocast` is what `te.fp8_autocast`, deprecated since, was called before."""
    if hasattr(te, "autocast"):
        eight = te.autocast(enabled=True, recipe=te_recipe)
    else:
        eight = te.fp8_autocast(enabled=True, fp8_recipe=te_recipe)
    with torch.autocast("cuda", torch.bfloat16), eight:
        yield


def transformer_engine_recipe(recipe: Recipe) -> Any:
    """The same scaling as a recipe of Transformer Engine; ValueError for one that it does not have."""
    names = {
        "delayed": "DelayedScaling",
        "tensor": "Float8CurrentScaling",
        "block": "Float8BlockScaling",
        "mx": "MXFP8BlockScaling",
    }
    if recipe.scaling not in names:
        raise ValueError(
            f"Transformer Engine has no scaling by {recipe.scaling!r}; it has {', '.join(names)}"
        )
    from transformer_engine.common import recipe as te_recipes

    kind = getattr(te_recipes, names[recipe.scaling])
    if recipe.scaling != "delayed":
        return kind()
    both = te_recipes.Format.HYBRID if recipe.backward == "e5m2" else te_recipes.Format.E4M3
    return kind(
        margin=recipe.margin, fp8_format=both, amax_history_len=recipe.history, amax_compute_algo="max"
    )
