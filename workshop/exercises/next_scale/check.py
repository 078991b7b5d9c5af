"""Exercise: dynamic loss scaling, the part that decides.

Micikevicius et al. 2018, arXiv 1710.03740, section 3.2; `torch.amp.GradScaler.update` does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

State = tuple[float, int, bool]


def _right(scale: float, good_steps: int, finite: bool, interval: int) -> State:
    if not finite:
        return scale / 2, 0, False
    return (scale * 2, 0, True) if good_steps + 1 == interval else (scale, good_steps + 1, True)


def _counts_on(scale: float, good_steps: int, finite: bool, interval: int) -> State:
    return _right(scale, good_steps, finite, interval) if finite else (scale / 2, good_steps, False)


def _steps_anyway(scale: float, good_steps: int, finite: bool, interval: int) -> State:
    return (*_right(scale, good_steps, finite, interval)[:2], True)


def _never_counts_anew(scale: float, good_steps: int, finite: bool, interval: int) -> State:
    if not finite:
        return scale / 2, 0, False
    return (scale * 2 if good_steps + 1 >= interval else scale), good_steps + 1, True


def _late(scale: float, good_steps: int, finite: bool, interval: int) -> State:
    return (
        _right(scale, good_steps - 1, finite, interval)[0],
        _after_late(good_steps, finite, interval),
        finite,
    )


def _after_late(good_steps: int, finite: bool, interval: int) -> int:
    return 0 if not finite or good_steps == interval else good_steps + 1


def _every_step(scale: float, _good_steps: int, finite: bool, _interval: int) -> State:
    return (scale * 2, 0, True) if finite else (scale / 2, 0, False)


def _never_grows(scale: float, good_steps: int, finite: bool, _interval: int) -> State:
    return (scale, good_steps + 1, True) if finite else (scale / 2, 0, False)


MISTAKES: tuple[tuple[Callable[..., State], str], ...] = (
    (_counts_on, "An overflow ends the row of good steps, so counting begins at 0 again."),
    (
        _steps_anyway,
        "With infinite gradients the optimizer must not step, or the weights would be NaN for good.",
    ),
    (_never_counts_anew, "After doubling, counting begins at 0 again, or every further step doubles."),
    (_late, "This step is good as well, so count it before you compare with `interval`."),
    (
        _every_step,
        "That doubles after each good step, so every second one would overflow. Wait for `interval`.",
    ),
    (
        _never_grows,
        "The scale only ever falls here. After one bad batch, small gradients are lost until the end.",
    ),
)

PLAYED = (True, True, True, True, True, False, True, True, False, False, *(True,) * 7, False)


def _play(function: Callable[..., Any], interval: int) -> list[Any]:
    """Feed a training's good and bad steps to a function, from a scale of 1,024; its answers."""
    state, answers = (1024.0, 0), []
    for finite in PLAYED:
        answer = call(function, "next_scale", Call((*state, finite, interval)))
        answers.append(answer)
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Wrong(
                f"`next_scale({state[0]:g}, {state[1]}, {finite}, {interval})` gave {shown(answer)}; wanted "
                "three things: scale, count, and whether to step."
            )
        state = (answer[0], answer[1])
    return answers


def check(names: dict[str, Any]) -> str:
    """Eighteen steps, played for two intervals; each answer is the next question."""
    mine = names["next_scale"]
    for interval in (3, 2):
        answers, wanted = _play(mine, interval), _play(_right, interval)
        if [tuple(answer) for answer in answers] == wanted:
            continue
        advice = next(
            (words for formula, words in MISTAKES if [tuple(a) for a in answers] == _play(formula, interval)),
            "",
        )
        step = next(
            i for i, pair in enumerate(zip(answers, wanted, strict=True)) if tuple(pair[0]) != pair[1]
        )
        which = "finite" if PLAYED[step] else "overflow"
        raise Wrong(
            f"With interval {interval}, at step {step + 1} of a training ({which}): "
            f"{shown(tuple(answers[step]))}; wanted {shown(wanted[step])}. {advice}".rstrip()
        )
    return (
        f"{len(PLAYED)} steps with {PLAYED.count(False)} overflows, for two intervals: each scale is right."
    )
