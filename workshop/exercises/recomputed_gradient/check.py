"""Exercise: the backward half of activation checkpointing.

Chen et al. 2016, arXiv 1604.06174. A layer in float64 runs plainly, and then through the learner's function,
called as autograd calls a Function's backward: without recording.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "recomputed_gradient"


def check(names: dict[str, Any]) -> str:
    """The input's gradient and the weights', twice, so that the weights' must add up."""
    import torch

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
        _both_times(names[NAME], torch.nn.Sequential(*layers).double())
    return "The input's gradient and those of four parameters are the same as without checkpointing."


def _both_times(function: Any, layer: Any) -> None:
    import torch

    x, gradient = (torch.randn(3, 4, dtype=torch.float64) for _ in range(2))
    start = x.clone().requires_grad_()
    output = layer(start)
    output.backward(gradient)
    wanted = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad(set_to_none=True)
    for times in (1, 2):
        answer = _answer(function, (layer, x, gradient))
        _compare(answer, start.grad, output.detach(), _of_the_sum(layer, x))
        for parameter, one in zip(layer.parameters(), wanted, strict=True):
            _compare_weight(parameter.grad, one, times)
        for parameter, one in zip(layer.parameters(), wanted, strict=True):
            parameter.grad = one.clone()  # as if another backward had left it there


def _answer(function: Any, given: tuple[Any, ...]) -> Any:
    """The learner's answer, called where nothing is recorded."""
    import torch

    try:
        with torch.no_grad():
            return call(function, NAME, Call(given))
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise Wrong(
            "The second forward was not recorded, so no gradient can be sent through it. Autograd calls this "
            "function where nothing is recorded: run the layer inside `with torch.enable_grad():`."
        ) from None


def _of_the_sum(layer: Any, x: Any) -> Any:
    """The gradient of x of the plain sum of the output, in which the given gradient is lost."""
    import torch

    again = x.clone().requires_grad_()
    return torch.autograd.grad(layer(again).sum(), again)[0]


def _compare(answer: Any, wanted: Any, output: Any, of_sum: Any) -> None:
    import torch

    if not isinstance(answer, torch.Tensor):
        raise Wrong(f"`{NAME}` gave {shown(answer)}; wanted a tensor, the gradient of `x`.")
    if answer.shape != wanted.shape:
        raise Wrong(f"The result has shape {tuple(answer.shape)}; wanted {tuple(wanted.shape)}, that of `x`.")
    if torch.allclose(answer.double(), wanted):
        return
    others = (
        (output, "That is the output of the layer; wanted the gradient of `x`."),
        (
            of_sum,
            "That is the gradient of the sum of the output. `gradient` is lost: start backward from it.",
        ),
    )
    why = next((words for other, words in others if torch.allclose(answer.double(), other)), "")
    raise Wrong(f"The gradient of `x` is not that of a plain backward. {why}".rstrip())


def _compare_weight(grad: Any, one: Any, times: int) -> None:
    import torch

    if grad is None:
        raise Wrong(
            "The gradient of `x` is right, but the layer's weights got none, so they would never learn. "
            "`again.backward(gradient)` fills theirs, too."
        )
    if torch.allclose(grad, times * one):
        return
    if times == 2 and torch.allclose(grad, one):
        raise Wrong("The weights had gradients already, which are gone or unchanged. New ones add to them.")
    raise Wrong("The gradient of `x` is right, but those of the weights are not those of a plain backward.")
