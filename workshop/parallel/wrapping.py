"""Which modules become units: the one choice that sharding leaves to people.

Whoever keeps only a part of every weight must borrow the rest before a computation, and can give it back
after. A *unit* is what is borrowed at once. Its size is a compromise:

* too large (the whole model as one unit): everything is there at once, and nothing was saved but state;
* too small (every matrix for itself): many small messages, each with its start-up time, none worth the wire;
* a transformer's layer: one at a time is a small part of the model, and a message of megabytes.

So libraries wrap layers, and so does ``"layers"`` here. What lies outside every unit (embedding, last norm,
head) belongs to the root, which is borrowed for the whole step. (Zhao et al. 2023, arXiv 2304.11277,
section 3.2.1; Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from workshop.facts.checks import check_choice

WRAPS = ("layers", "root", "every-linear")

Wrap = str | Callable[[nn.Module], bool]
"""A name of `WRAPS`, or a function that says of a module whether it is a unit of its own."""


def units(model: nn.Module, wrap: Wrap = "layers") -> list[nn.Module]:
    """The modules that are units, inner ones before outer ones; the last is the model itself.

    ``"layers"``: members of the outermost lists of like modules (``model.layers``, a Sequential of blocks).
    ``"root"``: the model alone. ``"every-linear"``: each `nn.Linear`, but for one whose weight is tied.
    A function is asked about every module.

    Raises:
        ValueError: An unknown name; "layers" where no list of layers is found; a function that says yes to
            nothing, to a list, which is never called, or to a module that shares a weight with something
            outside it.
    """
    if callable(wrap):
        inner = [module for module in model.modules() if module is not model and wrap(module)]
        if not inner:
            raise ValueError("wrap: the function said yes to no module; print(model) shows what there is")
        for module in inner:
            if isinstance(module, nn.ModuleList | nn.ModuleDict):
                raise ValueError(
                    f"wrap: a {type(module).__name__} is never called, so nothing says when to gather its "
                    "weights; wrap what is called, such as its members"
                )
            if _is_tied_outside(model, module):
                raise ValueError(
                    f"wrap: a {type(module).__name__} shares a weight with a module outside it. A weight "
                    "belongs to one unit: leave this one to the root, or wrap a module that holds both"
                )
    else:
        check_choice("wrap", wrap, WRAPS)
        inner = {"layers": layers, "root": lambda _: [], "every-linear": _linears}[wrap](model)
    chosen = set(inner)
    return [*(module for module in _children_first(model) if module in chosen), model]


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    """All modules below, each after those below it, else in the order in which they were made."""
    for child in module.children():
        yield from _children_first(child)
    yield module


def layers(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a model, in order; ValueError where there are none."""
    blocks = list(_layers_below(model))
    if not blocks:
        raise ValueError(
            f"wrap='layers': {type(model).__name__} has no list of like modules. "
            "Give a function that says which modules are units, for example "
            "wrap=lambda module: isinstance(module, Block)"
        )
    return blocks


def _layers_below(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        members = [member for member in module.children() if any(True for _ in member.parameters())]
        alike = len({type(member) for member in members}) == 1
        if alike and (len(members) > 1 or not isinstance(module, nn.Sequential)):
            yield from members
            return
    for child in module.children():
        yield from _layers_below(child)


def _linears(model: nn.Module) -> list[nn.Module]:
    linears = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not model]
    return [module for module in linears if not _is_tied_outside(model, module)]


def _is_tied_outside(model: nn.Module, module: nn.Module) -> bool:
    """Whether a parameter of the module is also held by one that does not lie in it."""
    own, inside = set(module.parameters()), set(module.modules())
    others = (other for other in model.modules() if other not in inside)
    return any(p in own for other in others for p in other._parameters.values() if p is not None)
