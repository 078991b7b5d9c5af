"""Exercise: a linear map with a low-rank change beside it.

Hu et al. 2021, arXiv 2106.09685, equation 3 and section 4.1: h = W x + (alpha / r) B A x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

Forward = Callable[..., Any]


def _forward(scale: Callable[[float, int], float], frozen: bool = True) -> Forward:
    def forward(x: Any, weight: Any, a: Any, b: Any, alpha: float) -> Any:
        return frozen * (x @ weight.T) + scale(alpha, len(a)) * ((x @ a.T) @ b.T)

    return forward


_right = _forward(lambda alpha, r: alpha / r)
MISTAKES: tuple[tuple[Forward, str], ...] = (
    (_forward(lambda *_: 1.0), "The scale alpha / r is missing."),
    (
        _forward(lambda alpha, _: alpha),
        "That is alpha, not alpha / r: with a larger r the change would grow.",
    ),
    (_forward(lambda alpha, r: alpha * r), "alpha is divided by r, not multiplied."),
    (_forward(lambda alpha, r: r / alpha), "The scale is upside down: alpha / r."),
    (_forward(lambda alpha, r: alpha / r, False), "The frozen part W x is lost."),
)


def _cases() -> list[tuple[Any, ...]]:
    import torch

    drawn = torch.Generator().manual_seed(0)
    readable = ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0]] * 3, [[1.0, 2.0]], [[1.0], [0.0], [10.0]])
    shapes = ((5, 6), (7, 6), (3, 6), (7, 3))
    random = (torch.randn(shape, generator=drawn, dtype=torch.float64) for shape in shapes)
    small = (torch.tensor(values, dtype=torch.float64) for values in readable)
    return [(*small, 2.0), (*random, 8.0)]


def check(names: dict[str, Any]) -> str:
    """A small case to read, a random one, the low-rank way taken, and gradients that come through."""
    forward, cases = names["lora_forward"], _cases()
    for case in cases:
        _one(forward, case)
    _thin(forward)
    _trains(forward, cases[-1])
    return "The change costs r (inputs + outputs) extra products a token. Once it is merged, it costs none."


def _one(forward: Any, case: tuple[Any, ...]) -> None:
    import torch

    answer, wanted = call(forward, "lora_forward", Call(case)), _right(*case)
    if not isinstance(answer, torch.Tensor):
        raise Wrong(f"`lora_forward` gave {shown(answer)}; wanted a tensor.")
    if answer.shape != wanted.shape:
        raise Wrong(f"The result has shape {tuple(answer.shape)}; wanted {tuple(wanted.shape)}.")
    if _same(answer, wanted):
        return
    why = next((s for mistake, s in MISTAKES if _same(answer, mistake(*case))), "")
    rows = [shown([round(value, 4) for value in each[0].tolist()]) for each in (answer, wanted)]
    raise Wrong(f"The first row is {rows[0]}; wanted {rows[1]}. {why}".rstrip())


def _same(answer: Any, wanted: Any) -> bool:
    import torch

    return torch.allclose(answer.double(), wanted, atol=1e-9)


def _thin(forward: Any) -> None:
    """Wrong, if `b` and `a` are multiplied with each other: here that alone is too large for fp32.

    Counted FLOPs would tell too, but not where an answer is graded: its function runs in another process.
    """
    import torch

    tokens, inputs, outputs, r = 2, 4, 3, 2
    case = (
        torch.full((tokens, inputs), 1e-30),
        torch.ones(outputs, inputs),
        torch.full((r, inputs), 1e30),
        torch.full((outputs, r), 1e30),
    )
    answer = call(forward, "lora_forward", Call((*case, 8.0)))
    if not bool(answer.isfinite().all()):
        raise Wrong(
            "The numbers are right, but `b @ a` is a matrix of weight's size: multiply x by `a` first."
        )


def _trains(forward: Any, case: tuple[Any, ...]) -> None:
    x, weight, a, b, alpha = case
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    answer = forward(x, weight, a, b, alpha)
    if answer.requires_grad:
        answer.sum().backward()
    for name, factor in (("a", a), ("b", b)):
        if factor.grad is None:
            raise Wrong(
                f"The numbers are right, but no gradient reaches `{name}`: it would never be trained."
            )
