"""Exercise: self time, from the events of one thread.

An operator's total time includes what it calls; its self time does not. Only self times sum to the whole, so
only they say where the time goes. The same distinction is ``tottime`` and ``cumtime`` in cProfile, and "Self
CPU" and "CPU total" in torch.profiler's tables.
"""

from __future__ import annotations

from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, number, shown

Events = list[tuple[str, float, float]]

CASES: tuple[Events, ...] = (
    [("step", 0.0, 10.0), ("mm", 2.0, 5.0)],
    [("step", 0.0, 10.0), ("linear", 1.0, 7.0), ("mm", 2.0, 5.0)],
    [("linear", 0.0, 4.0), ("mm", 1.0, 2.0), ("linear", 4.0, 9.0), ("mm", 5.0, 8.0)],
    [("walk", 0.0, 8.0), ("walk", 1.0, 4.0), ("walk", 2.0, 3.0)],
    [],
)


def _depths(events: Events) -> list[list[int]]:
    """For each event the events around it, outermost first."""
    return [
        [j for j, (_, a, b) in enumerate(events[:i]) if a <= start and end <= b]
        for i, (_, start, end) in enumerate(events)
    ]


def _truth(events: Events) -> dict[str, float]:
    return _taken(events, [around[-1:] for around in _depths(events)])


def _taken(events: Events, losers: list[list[int]]) -> dict[str, float]:
    """Lengths by name, each event's taken away from those that lose it."""
    own: dict[str, float] = {}
    for (name, start, end), lost in zip(events, losers, strict=True):
        own[name] = own.get(name, 0.0) + end - start
        for j in lost:
            own[events[j][0]] -= end - start
    return own


def _total(events: Events) -> dict[str, float]:
    return _taken(events, [[] for _ in events])


def _everything_below(events: Events) -> dict[str, float]:
    return _taken(events, _depths(events))


def _outermost(events: Events) -> dict[str, float]:
    return _taken(events, [around[:1] for around in _depths(events)])


def _overwritten(events: Events) -> dict[str, float]:
    own: dict[str, float] = {}
    for (name, start, end), around in zip(events, _depths(events), strict=True):
        own[name] = end - start
        for j in around[-1:]:
            own[events[j][0]] -= end - start
    return own


MISTAKES = (
    (_total, "That is the total time, including everything inside: the sum over names counts seconds twice."),
    (
        _everything_below,
        "An event inside two others is taken away twice. Subtract it only from the innermost one around it.",
    ),
    (
        _outermost,
        "Subtract an event's time from its parent (the innermost event around it), not from the outermost.",
    ),
    (
        _overwritten,
        "A name can occur several times: add to its value; otherwise only its last event is left.",
    ),
)


def check(names: dict[str, Any]) -> str:
    """One inside another, three deep, a name twice, a name inside itself, none."""
    answers = [_answer_of(names["self_seconds"], events) for events in CASES]
    if all(_same(mine, _truth(events)) for mine, events in zip(answers, CASES, strict=True)):
        return "The self times of a thread sum to its outermost events. Nothing is counted twice."
    advice = next(
        (
            sentence
            for formula, sentence in MISTAKES
            if all(_same(mine, formula(events)) for mine, events in zip(answers, CASES, strict=True))
        ),
        "",
    )
    for mine, events in zip(answers, CASES, strict=True):
        if not _same(mine, _truth(events)):
            written = f"self_seconds({events})"
            raise Wrong(f"`{written}` gave {shown(mine)}; wanted {shown(_truth(events))}. {advice}".rstrip())
    raise AssertionError("unreachable: some case differs")


def _answer_of(function: Any, events: Events) -> dict[str, float]:
    answer = call(function, "self_seconds", Call((list(events),)))
    if not isinstance(answer, dict):
        raise Wrong(f"`self_seconds` gave {shown(answer)}; wanted a dict from name to seconds.")
    return {str(name): number(value, f"self_seconds(...)[{name!r}]") for name, value in answer.items()}


def _same(answer: dict[str, float], wanted: dict[str, float]) -> bool:
    return answer.keys() == wanted.keys() and all(abs(answer[n] - wanted[n]) < 1e-9 for n in wanted)
