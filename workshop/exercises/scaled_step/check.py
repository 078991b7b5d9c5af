"""Exercise: one step of the loop, with a scaled loss.

Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; the loop is that of `torch.amp.GradScaler`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from workshop.exercises.engine.check import Wrong, shown

NAME = "scaled_step"
INTERVAL, LIMIT, FIRST_SCALE = 2, 4.0, 16.0


class Batch(NamedTuple):
    """What the gradients of the two parameters are, and the factor in fp32 by which the loss is divided."""

    first: Sequence[float]
    second: Sequence[float]
    divide: float = 1.0
    kind: str = "gradients like any others"


BATCHES = (
    Batch((0.5, 0.25), (1.0,)),
    Batch((6.0, 0.0), (8.0,), kind="a norm of 10, which is above `limit`"),
    Batch((0.5, 0.25), (4096.0,), kind="the scaled gradient of the second parameter overflows"),
    Batch((2.0**-16, 2.0**-15), (0.0,), 2.0**10, kind="gradients too small for fp16 without a scale"),
    Batch((math.nan, 0.5), (1.0,), kind="a gradient is NaN"),
    Batch((0.5, 0.25), (1.0,)),
    Batch((1.0, 0.5), (2.0,), kind="the second good step in a row"),
)


class Seen(NamedTuple):
    """After a step: by how much each weight moved, the state, and how often the optimizer stepped."""

    moved: list[float]
    state: tuple[float, int]
    stepped: int


def play(step: Callable[..., Any]) -> list[Seen]:
    """The batches in a row, on one model whose products run in fp16; SGD with a rate of 1."""
    import torch

    from workshop.exercises.next_scale.solution import next_scale

    decide = partial(next_scale, interval=INTERVAL)
    weights = torch.nn.ParameterList(
        [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    )
    optimizer = torch.optim.SGD(weights.parameters(), lr=1.0)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    state: Any = (FIRST_SCALE, 0)
    seen = []
    for batch in BATCHES:
        steps.clear()
        before = torch.cat([weight.detach() for weight in weights])
        given = [torch.tensor(values, dtype=torch.float16) for values in (batch.first, batch.second)]
        products = [(weight.half() * one).sum() for weight, one in zip(weights, given, strict=True)]
        loss = (products[0] + products[1]).float() / batch.divide
        state = _pair(step(loss, weights, optimizer, state, LIMIT, decide))
        after = torch.cat([weight.detach() for weight in weights])
        seen.append(Seen((after - before).tolist(), state, len(steps)))
    return seen


def _pair(answer: Any) -> tuple[float, int]:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise Wrong(f"`{NAME}` gave {shown(answer)}; wanted a pair: the next scale and the next good_steps.")
    return float(answer[0]), int(answer[1])


def _clip(model: Any, how: str, limit: float) -> None:
    """How: "together", all gradients by one norm; "each" by its own; or "never"."""
    import torch

    parameters = list(model.parameters())
    for some in {"together": [parameters], "each": parameters, "never": []}[how]:
        torch.nn.utils.clip_grad_norm_(some, limit)


def _by(
    *,
    multiplies: bool = True,
    divides: str = "before",  # it clips; or "after", "by the next scale", "never"
    clips: str = "together",
    looks: str = "isfinite",  # at the gradients; or "isinf", "weights"
    skips: bool = True,
    zeroes: str = "always",  # or "stepped", "never"
) -> Callable[..., tuple[float, int]]:
    """The step; with another argument, one that people write instead."""

    def step(loss: Any, model: Any, optimizer: Any, state: Any, *more: Any) -> tuple[float, int]:
        import torch

        (scale, good_steps), (limit, decide) = state, more
        (loss * scale if multiplies else loss).backward()
        gradients = [parameter.grad for parameter in model.parameters()]

        bad = [g.isinf() if looks == "isinf" else ~g.isfinite() for g in gradients]
        finite = not any(bool(one.any()) for one in bad)
        stepped = finite or not skips or looks == "weights"
        if divides == "after":
            _clip(model, clips, limit)
        if divides != "never":
            following = decide(scale, good_steps, finite)[0]
            torch._foreach_div_(gradients, following if divides == "by the next scale" else scale)
        if stepped:
            if divides != "after":
                _clip(model, clips, limit)
            optimizer.step()
        if looks == "weights":
            finite = all(bool(p.isfinite().all()) for p in model.parameters())
        if zeroes == "always" or (zeroes == "stepped" and stepped):
            optimizer.zero_grad()
        return decide(scale, good_steps, finite)[:2]

    return step


MISTAKES = (
    (
        _by(divides="never"),
        "These gradients are still as many times too large as the loss was: divide each by the scale.",
    ),
    (
        _by(multiplies=False, divides="never"),
        "Backward ran on the loss itself, so small gradients vanish and nothing overflows.",
    ),
    (_by(multiplies=False), "They were divided by the scale without having multiplied the loss by it."),
    (
        _by(divides="after"),
        "The gradients were clipped before they were divided, while they were `scale` times too large.",
    ),
    (_by(clips="never"), "The gradients must be clipped to a norm of at most `limit`."),
    (_by(clips="each"), "The limit is for one norm for all parameters together, not for one of each."),
    (
        _by(skips=False),
        "The optimizer stepped with gradients that are not finite, and the weights stay so for good.",
    ),
    (
        _by(looks="weights"),
        "It looked at the weights after the step. Then it is too late: they are no longer finite.",
    ),
    (_by(looks="isinf"), "NaN is not finite either: it comes of infinity minus infinity, or times 0."),
    (_by(zeroes="never"), "The gradients of the step before are still there, and backward adds to them."),
    (_by(zeroes="stepped"), "After a skipped step its gradients are still there, and backward adds to them."),
    (
        _by(divides="by the next scale"),
        "The gradients were divided by the next scale, but multiplied by the one before.",
    ),
)


def check(reports: list[dict[str, Any]]) -> str:
    """Seven steps in a row: each weight has moved as it should, and the state is the right one."""
    (report,) = reports
    if report["wrong"]:
        raise Wrong(report["wrong"])
    answers = [
        Seen(list(map(float, moved)), (float(scale), good), stepped)
        for moved, scale, good, stepped in report["steps"]
    ]
    wanted = play(_by())
    if _same(answers, wanted):
        return (
            f"{len(BATCHES)} steps in a row, of which 2 were skipped: weights, scale and count are right "
            "after each."
        )
    advice = next((words for formula, words in MISTAKES if _same(answers, play(formula))), "")
    number = next(i for i, pair in enumerate(zip(answers, wanted, strict=True)) if not _alike(*pair))
    answer, right = answers[number], wanted[number]
    where = f"At step {number + 1} ({BATCHES[number].kind}) "
    if not _close(answer.moved, right.moved):
        raise Wrong(
            f"{where}the weights moved by {_listed(answer.moved)}; wanted {_listed(right.moved)}. "
            f"{advice}".rstrip()
        )
    if answer.stepped != right.stepped:
        raise Wrong(
            f"{where}the optimizer stepped {answer.stepped} times; wanted {right.stepped}. A step with "
            "gradients of 0 is a step, too: AdamW moves the weights by what its moments remember."
        )
    raise Wrong(f"{where}the state is {shown(answer.state)}; wanted {shown(right.state)}. {advice}".rstrip())


def _same(answers: list[Seen], wanted: list[Seen]) -> bool:
    return all(_alike(*pair) for pair in zip(answers, wanted, strict=True))


def _alike(answer: Seen, wanted: Seen) -> bool:
    alike = answer.state == wanted.state and answer.stepped == wanted.stepped
    return alike and _close(answer.moved, wanted.moved)


def _close(answer: list[float], wanted: list[float]) -> bool:
    """Equal to 1e-4 of the largest; NaN and infinity are equal to themselves."""
    room = 1e-4 * max((abs(value) for value in wanted if math.isfinite(value)), default=0.0)
    return all(
        a == b or abs(a - b) <= room or (math.isnan(a) and math.isnan(b))
        for a, b in zip(answer, wanted, strict=True)
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value + 0.0:.4g}" for value in values)
