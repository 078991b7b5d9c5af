"""Exercise: which linear layers of a model may run in FP8.

The rules of `workshop.precision.fp8_swap`: sizes in multiples of 16; the first and the last linear layer keep
their precision, as by default in Accelerate's recipe for torchao; and so does a shared weight. torchao itself
converts every linear layer unless it is given a filter.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

MODELS = (
    [
        ("q", 64, 64, False),
        ("up", 64, 176, False),
        ("gate", 64, 172, False),
        ("down", 176, 64, False),
        ("head", 64, 96, False),
    ],
    [
        ("odd", 30, 64, False),
        ("a", 64, 64, False),
        ("b", 60, 64, False),
        ("c", 64, 64, True),
        ("d", 64, 32, False),
        ("e", 40, 72, False),
        ("head", 64, 1000, False),
    ],
    [("in", 64, 64, False), ("out", 64, 64, False)],
)

Layers = list[tuple[str, int, int, bool]]


def _fit(
    layers: Layers, *, rows: bool = True, columns: bool = True, alone: bool = True, by: int = 16
) -> list[str]:
    return [
        name
        for name, inside, outside, shared in layers
        if not (rows and inside % by) and not (columns and outside % by) and not (alone and shared)
    ]


MISTAKES = (
    (lambda layers: _fit(layers), "The first and the last layer of the model keep their precision."),
    (
        lambda layers: _fit(layers)[1:-1],
        "Leave out the first and last of all linear layers, not of those that fit: cut before you filter.",
    ),
    (
        lambda layers: _fit(layers[1:]),
        "The last layer, usually the head, has to stay as it is, because it makes the logits.",
    ),
    (
        lambda layers: _fit(layers[1:-1], rows=False),
        "Check `in_features` as well: it is the depth of the product.",
    ),
    (
        lambda layers: _fit(layers[1:-1], columns=False),
        "Check `out_features` as well: in backward it is the depth.",
    ),
    (
        lambda layers: _fit(layers[1:-1], alone=False),
        "A shared weight is in your list. The other layer that uses it would not know about FP8.",
    ),
    (
        lambda layers: _fit(layers[1:-1], by=4),
        "Sizes must be multiples of 16: 8-bit units read 16 numbers at a time.",
    ),
    (
        lambda layers: _fit(layers[1:-1], by=8),
        "Multiples of 8 will not do: 8-bit units read 16 numbers at a time.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Three models: one plain, one with every reason to stay, one with ends only."""
    answers = []
    for layers in MODELS:
        answer = call(names["runs_in_fp8"], "runs_in_fp8", Call((list(layers),)))
        if not isinstance(answer, list | tuple):
            raise Wrong(f"`runs_in_fp8(...)` gave {shown(answer)}; wanted a list of names.")
        answers.append(list(answer))
    wanted = [_fit(layers[1:-1]) for layers in MODELS]
    if answers != wanted:
        advice = next((words for formula, words in MISTAKES if [formula(m) for m in MODELS] == answers), "")
        which = next(i for i, pair in enumerate(zip(answers, wanted, strict=True)) if pair[0] != pair[1])
        raise Wrong(
            f"For {MODELS[which]}: {shown(answers[which])}; wanted {shown(wanted[which])}. {advice}".rstrip()
        )
    return "Three models: what is left is the inside of the blocks, where nearly all of the products are."
