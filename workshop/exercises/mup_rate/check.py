"""Exercise: which rate each parameter of a wider model takes under muP.

Yang et al. 2022, arXiv 2203.03466, table 3: with Adam, hidden and output matrices take a rate that falls with
their fan-in; what does not add up over the width (embeddings, gains of norms) keeps it.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Mistake, compare

NAME = "mup_rate"
EMBEDDING = "model.embed_tokens.weight"
LAYER = "model.layers.1."


def _shapes(width: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parameters of every kind, in the order in which a mistake is told."""
    return (
        (LAYER + "self_attn.q_proj.weight", (width, width)),
        (LAYER + "self_attn.k_proj.weight", (width // 2, width)),
        (LAYER + "mlp.down_proj.weight", (width, 3 * width)),
        (LAYER + "mlp.up_proj.weight", (3 * width, width)),
        ("lm_head.weight", (256, width)),
        (EMBEDDING, (256, width)),
        (LAYER + "input_layernorm.weight", (width,)),
        ("model.norm.weight", (width,)),
    )


CALLS = tuple(
    Call((name, shape, rate, width, base))
    for rate, width, base in ((0.016, 32, 32), (0.016, 128, 32), (0.01, 512, 64), (0.002, 48, 64))
    for name, shape in _shapes(width)
)


def _adds_up(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and name != EMBEDDING


def _right(name: str, shape: tuple[int, ...], rate: float, width: int, base: int) -> float:
    return rate * base / width if _adds_up(name, shape) else rate


def _where(fits: Any, formula: Any) -> Any:
    """The right rate, but `formula(shape, rate, width, base)` for the parameters that ``fits`` names."""
    return lambda name, shape, rate, width, base: (
        formula(shape, rate, width, base) if fits(name, shape) else _right(name, shape, rate, width, base)
    )


MISTAKES = (
    Mistake(
        _where(_adds_up, lambda _, rate, *__: rate),
        "One rate for all, as if nothing were added up: the outputs of a matrix would move in proportion to "
        "the width.",
    ),
    Mistake(
        _where(lambda name, _: name == EMBEDDING, lambda _, rate, width, base: rate * base / width),
        "The embedding is a matrix, but a word picks one row of it, and nothing is added up.",
    ),
    Mistake(
        _where(lambda _, shape: len(shape) == 1, lambda _, rate, width, base: rate * base / width),
        "A norm's weight multiplies each number by its own factor. Nothing is added up over the width.",
    ),
    Mistake(
        _where(_adds_up, lambda _, rate, width, base: rate * (base / width) ** 0.5),
        "Noise would add up by the root of the width. Here all changes follow one gradient, and add up in "
        "full.",
    ),
    Mistake(
        _where(_adds_up, lambda _, rate, width, base: rate * width / base),
        "That rate grows with the width. More numbers are added up, so each must move less.",
    ),
    Mistake(
        _where(_adds_up, lambda shape, rate, _, base: rate * base / shape[1]),
        "At the base width every parameter keeps the tuned rate, including `down_proj` with three times as "
        "many inputs. All inputs grow in proportion to the width, and only that ratio matters.",
    ),
    Mistake(
        _where(lambda name, _: name.startswith("lm_head"), lambda _, rate, *__: rate),
        "The head is a matrix like the others: each logit adds up over the width.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """Every kind of parameter, at four pairs of widths."""
    compare(names[NAME], NAME, CALLS, _right, MISTAKES)
    return "Eight kinds of parameters at four widths: what adds up over the width takes a lower rate."
