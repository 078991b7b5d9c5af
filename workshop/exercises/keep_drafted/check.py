"""Exercise: which guessed tokens stay, and what comes behind them.

Leviathan et al. 2023, arXiv 2211.17192, algorithm 1, for a temperature of 0.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "keep_drafted"
CASES: tuple[tuple[list[int], list[int]], ...] = (
    ([], [3]),
    ([5, 7, 9], [5, 8, 9, 2]),
    ([5, 7, 9], [4, 7, 9, 2]),
    ([5, 7, 9], [5, 7, 1, 2]),
    ([5, 7, 9], [5, 7, 9, 2]),
    ([6], [6, 6]),
)


def _wanted(drafted: list[int], chosen: list[int]) -> list[int]:
    right = 0
    while right < len(drafted) and drafted[right] == chosen[right]:
        right += 1
    return [*drafted[:right], chosen[right]]


def _sentence(drafted: list[int], chosen: list[int], answer: list[int]) -> str:
    """What is wrong with these tokens."""
    wanted = _wanted(drafted, chosen)
    right = len(wanted) - 1
    if not answer or (answer == wanted[:-1] and right < len(drafted)):
        return "The model's own choice is missing behind the guesses: it is always right."
    if answer == wanted[:-1]:
        return "All guesses are right, so the same pass yields the token behind them too: one more."
    if len(answer) == right + 1 and answer[:right] == wanted[:right]:
        return f"It keeps {answer[right]}, which the model would not have written."
    if answer == chosen:
        return "What the model chose behind a wrong guess, it chose for another text: leave it out."
    if len(answer) > len(wanted):
        return "A later guess stays, although the draft made it for another text."
    return "Keep only the guesses before the first wrong one, and add the model's own choice in its place."


def check(names: dict[str, Any]) -> str:
    """No guess, a wrong one in each place, and none wrong."""
    for drafted, chosen in CASES:
        made = Call((list(drafted), list(chosen)))
        answer = call(names[NAME], NAME, made)
        if not isinstance(answer, (list, tuple)):
            raise Wrong(f"`{made.written(NAME)}` gave {shown(answer)}; wanted a list of tokens.")
        if list(answer) != _wanted(drafted, chosen):
            advice = _sentence(drafted, chosen, list(answer))
            raise Wrong(
                f"`{made.written(NAME)}` gave {shown(answer)}; wanted {_wanted(drafted, chosen)}. {advice}"
            )
    return "The text is the model's own, token for token; the draft decides only how many passes it takes."
