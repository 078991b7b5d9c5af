"""Put FP8 layers into a model and take them out again; parameters and state_dict stay what they are.

Three rules say which layers (`why_kept` gives the reason for each that is not):

* sizes must be multiples of 16, or 8-bit units cannot read them. What mostly fails this is the head: a
  vocabulary of 50,257 is padded to 50,272, with tokens that nobody uses (`padded_size`);
* the first and the last linear layer keep their precision. They see the embeddings and make the logits, and
  their errors are not averaged out by anything (Accelerate's recipe keeps them, too; torchao's own
  ``convert_to_float8_training`` converts all linear layers unless it is given a filter);
* a layer whose weight is shared with something else (a tied head) keeps it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from workshop.precision.fp8 import Fp8Linear, Recipe

MULTIPLE = 16


def padded_size(size: int, multiple: int = MULTIPLE) -> int:
    """The next multiple, for a vocabulary that 8-bit units can read.

    >>> padded_size(50257)
    50272
    """
    if size < 1 or multiple < 1:
        raise ValueError(f"size {size}, multiple {multiple}: both must be 1 or more")
    return -(-size // multiple) * multiple


def why_kept(model: nn.Module, keep_ends: bool = True, keep: Iterable[str] = ()) -> dict[str, str]:
    """The reason by name for each linear layer that is not to be swapped; "" for those that are.

    keep_ends: keep the first and the last linear layer. keep: names to keep besides.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    keep = set(keep)
    if unknown := keep - set(linears):
        raise ValueError(f"{sorted(unknown)} are no linear layers of this model; it has {', '.join(linears)}")
    first, last = next(iter(linears), ""), next(reversed(linears), "")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    reasons = {}
    for name, linear in linears.items():
        sizes = (linear.in_features, linear.out_features)
        if name in keep:
            reasons[name] = "asked for"
        elif keep_ends and name in (first, last):
            reasons[name] = "the first" if name == first else "the last"
        elif owners[id(linear.weight)] > 1:
            reasons[name] = "its weight is shared"
        elif any(size % MULTIPLE for size in sizes):
            reasons[name] = f"{sizes[0]} x {sizes[1]}: no multiples of {MULTIPLE}"
        else:
            reasons[name] = ""
    return reasons


def swap(model: nn.Module, recipe: Recipe, keep_ends: bool = True, keep: Iterable[str] = ()) -> list[str]:
    """Make the linear layers of a model `Fp8Linear`, in place; the names of those that are now.

    The module itself changes its class, so parameters, hooks, optimizer and state_dict keep pointing at the
    same things. Swapping again changes the recipe and forgets what histories there were.

    Raises ValueError where nothing is left to swap, with the reasons.
    """
    reasons = why_kept(model, keep_ends, keep)
    names = [name for name, reason in reasons.items() if not reason]
    if not names:
        raise ValueError(f"no layer can run in FP8: {reasons or 'the model has no linear layers'}")
    for name in names:
        layer = model.get_submodule(name)
        if type(layer) not in (nn.Linear, Fp8Linear):
            raise ValueError(f"{name} is a {type(layer).__name__}, a linear layer of its own kind: keep it")
        layer.__class__ = Fp8Linear
        layer.recipe, layer.histories = recipe, {}  # type: ignore[assignment]
    return names


def unswap(model: nn.Module) -> None:
    """Make every `Fp8Linear` an `nn.Linear` again, in place."""
    for module in model.modules():
        if isinstance(module, Fp8Linear):
            del module.recipe, module.histories
            module.__class__ = nn.Linear  # type: ignore[assignment]
