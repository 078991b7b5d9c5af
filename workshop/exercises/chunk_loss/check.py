"""Exercise: the loss of some tokens and its gradients, without autograd; held against autograd's own."""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "chunk_loss"
PARTS = ("loss", "gradient by `hidden`", "gradient by `weight`")


def _wanted(
    hidden: Any, weight: Any, targets: Any, reduction: str = "sum", ignored: bool = True
) -> tuple[Any, ...]:
    import torch
    import torch.nn.functional as F

    hidden, weight = (one.clone().requires_grad_() for one in (hidden, weight))
    with torch.enable_grad():
        given = targets if ignored else targets.clamp(min=0)
        loss = F.cross_entropy(hidden @ weight.T, given, ignore_index=-100, reduction=reduction)
        return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def _cases() -> list[tuple[Any, Any, Any]]:
    import torch

    draw = torch.Generator().manual_seed(3)
    cases = []
    for tokens, words, width, ignored in ((6, 5, 3, 2), (4, 9, 4, 0), (7, 4, 6, 3)):
        hidden, weight = torch.randn(tokens, width, generator=draw), torch.randn(words, width, generator=draw)
        targets = torch.randint(words, (tokens,), generator=draw)
        targets[:ignored] = -100
        cases.append((hidden, weight, targets))
    return cases


def check(names: dict[str, Any]) -> str:
    """Three chunks, two of them with padding, against autograd."""
    import torch

    for case in _cases():
        with torch.no_grad():
            answer = call(names[NAME], NAME, Call(tuple(one.clone() for one in case)))
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Wrong(f"`chunk_loss` gave {shown(answer)}; wanted three: {', '.join(PARTS)}.")
        for part, value, wanted in zip(PARTS, answer, _wanted(*case), strict=True):
            _same(part, torch.as_tensor(value), wanted, case, answer)
    return "Three chunks, with padding and without: loss and both gradients are autograd's."


def _same(part: str, value: Any, wanted: Any, case: tuple[Any, ...], answer: Any) -> None:
    """Wrong, unless the part is what autograd gives; with the mistake that would explain it."""
    import torch

    if value.shape != wanted.shape:
        raise Wrong(f"The {part} has shape {tuple(value.shape)}; wanted {tuple(wanted.shape)}.")
    if torch.allclose(value, wanted, atol=1e-5):
        return
    padded = int((case[2] < 0).sum())
    raise Wrong(
        f"The {part} is not autograd's: {len(case[2])} tokens, {padded} of them padding. "
        f"{_advice(case, answer)}"
    )


def _advice(case: tuple[Any, ...], answer: Any) -> str:
    """Which mistake gives what was found, where one of the known does."""
    import torch

    hidden, weight, targets = case
    wanted = _wanted(*case)
    probabilities = (hidden @ weight.T).softmax(-1) * (targets >= 0)[:, None]
    known = (
        (
            0,
            _wanted(hidden, weight, targets, reduction="mean")[0],
            "That is the mean; wanted is the sum over tokens.",
        ),
        (
            0,
            _wanted(hidden, weight, targets, ignored=False)[0],
            "A negative target counts nothing; here it is word 0.",
        ),
        (
            1,
            _wanted(hidden, weight, targets, ignored=False)[1],
            "A negative target counts nothing: its row of the gradient is 0.",
        ),
        (1, -wanted[1], "Its sign is turned: the gradient is probabilities minus one-hot, not the reverse."),
        (1, probabilities @ weight, "The minus 1 at the right word is missing."),
    )
    for place, value, sentence in known:
        got = torch.as_tensor(answer[place])
        if got.shape == value.shape and torch.allclose(got, value, atol=1e-5):
            return sentence
    return ""
