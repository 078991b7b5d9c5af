"""Exercise: the log probability of an answer, from a model's logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "answer_log_prob"
Rule = Callable[[Any, Any, Any], Any]


def _picked(values: Any, texts: Any) -> Any:
    """Of the values of all words at each place, those of the tokens that come next."""
    return values[:, :-1].gather(-1, texts[:, 1:, None])[..., 0]


def _wanted(logits: Any, texts: Any, counted: Any) -> Any:
    return (_picked(logits.log_softmax(-1), texts) * counted[:, 1:]).sum(1)


def _not_shifted(logits: Any, texts: Any, counted: Any) -> Any:
    return (logits.log_softmax(-1).gather(-1, texts[..., None])[..., 0] * counted).sum(1)


MISTAKES: tuple[tuple[Rule, str], ...] = (
    (
        _not_shifted,
        "Logits predict the token that comes next, not the one at their own position.",
    ),
    (
        lambda g, t, _: _picked(g.log_softmax(-1), t).sum(1),
        "The sum includes the question's tokens and the padding. They do not count.",
    ),
    (
        lambda g, t, c: (_picked(g.log_softmax(-1), t) * c[:, :-1]).sum(1),
        "`counted` is shifted against the tokens: it says which token counts, not where it is predicted.",
    ),
    (
        lambda g, t, c: _wanted(g, t, c) / c[:, 1:].sum(1),
        "That is the mean over the answer's tokens. Probabilities are multiplied, so sum their logarithms.",
    ),
    (
        lambda g, t, c: (_picked(g, t) * c[:, 1:]).sum(1),
        "Logits are not log probabilities yet: take their log_softmax over the vocabulary.",
    ),
    (
        lambda g, t, c: (_picked(g.softmax(-1), t) * c[:, 1:]).sum(1),
        "Probabilities were summed. Take the logarithm of each first.",
    ),
    (lambda g, t, c: -_wanted(g, t, c), "It has the wrong sign: a log probability is never above 0."),
)


def _cases() -> list[tuple[Any, Any, Any]]:
    import torch

    drawn = torch.Generator().manual_seed(0)
    cases = []
    for texts, length, words, question in ((3, 7, 5, 2), (4, 9, 6, 4), (2, 5, 8, 1)):
        ids = torch.randint(words, (texts, length), generator=drawn)
        ends = torch.randint(question + 1, length + 1, (texts, 1), generator=drawn)
        ends[0], ends[-1] = length, question + 1  # one is as long as it can be, one a single token
        places = torch.arange(length)
        counted = (places >= question) & (places < ends)
        cases.append((3 * torch.randn(texts, length, words, generator=drawn), ids, counted))
    return cases


def _same(answer: Any, wanted: Any) -> bool:
    return bool(((answer - wanted).abs() < 1e-3 * (1 + wanted.abs())).all())


def _answer(function: Any, case: tuple[Any, Any, Any]) -> Any:
    import torch

    value = call(function, NAME, Call(tuple(one.clone() for one in case)))
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"`answer_log_prob(...)` gave {shown(value)}; wanted a tensor.")
    if value.shape != (len(case[1]),):
        raise Wrong(
            f"For {len(case[1])} texts it gave shape {tuple(value.shape)}; wanted one number for each text, "
            f"({len(case[1])},)."
        )
    return value.detach().float()


def check(names: dict[str, Any]) -> str:
    """Random logits and texts, with questions and padding of several lengths."""
    function, cases = names[NAME], _cases()
    answers = [_answer(function, case) for case in cases]
    wanted = [_wanted(*case) for case in cases]
    if not all(map(_same, answers, wanted)):
        advice = next(
            (
                s
                for rule, s in MISTAKES
                if all(_same(f, rule(*c)) for f, c in zip(answers, cases, strict=True))
            ),
            "",
        )
        where = next(i for i in range(len(cases)) if not _same(answers[i], wanted[i]))
        first = [round(float(x), 3) for x in answers[where]]
        right = [round(float(x), 3) for x in wanted[where]]
        raise Wrong(f"{len(first)} texts gave {first}; wanted {right}. {advice}".rstrip())
    _has_gradient(function, cases[0])
    return f"{sum(len(case[1]) for case in cases)} answers, from one token to seven"


def _has_gradient(function: Any, case: tuple[Any, Any, Any]) -> None:
    """Wrong, unless a model could learn from what the function gives."""
    logits = case[0].clone().requires_grad_()
    value = call(function, NAME, Call((logits, case[1].clone(), case[2].clone())))
    if not value.requires_grad:
        raise Wrong("No gradient comes back from it to the logits, so no model can learn from it.")
