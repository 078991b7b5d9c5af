"""Exercise: which tokens of a conversation are learned: the answers, each with its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from workshop.exercises.engine.check import Call, Wrong, call, shown

NAME = "answer_labels"
NOTHING = -100
HEADER, END = [1, 7, 8], 2
ASKED, NEXT = [1, 5, 8], [9]  # a user's header; what stands between two turns
CASES: dict[str, list[int]] = {
    "one question and its answer": [*ASKED, 20, 21, END, *NEXT, *HEADER, 30, 31, END, *NEXT],
    "three answers": [
        *(*ASKED, 20, END, *NEXT, *HEADER, 30, END, *NEXT),
        *(*ASKED, 21, 22, END, *NEXT, *HEADER, 31, 32, 33, END, *NEXT),
        *(*ASKED, 23, END, *NEXT, *HEADER, 30, 7, 8, 1, END),
    ],
    "a conversation cut off within its second answer": [
        *(*ASKED, 20, END, *NEXT, *HEADER, 30, END, *NEXT),
        *(*ASKED, 21, END, *NEXT, *HEADER, 31, 32),
    ],
    "a conversation cut off within a header": [*ASKED, 20, END, *NEXT, *HEADER, 30, END, *NEXT, *HEADER[:2]],
    "an empty answer": [*ASKED, 20, END, *NEXT, *HEADER, END, *NEXT, *ASKED, 21, END],
    "a conversation without an answer": [*ASKED, 20, 21, END],
    "one that begins with an answer": [*HEADER, 30, END, *NEXT, *ASKED, 20, END, *NEXT, *HEADER, 31, END],
}
Spans = list[tuple[int, int]]


def _spans(tokens: list[int]) -> Spans:
    """Where answers begin and stop, by the rule."""
    begins = [i for i in range(len(HEADER), len(tokens) + 1) if tokens[i - len(HEADER) : i] == HEADER]
    return [(b, tokens.index(END, b) + 1 if END in tokens[b:] else len(tokens)) for b in begins]


def _labels(tokens: list[int], spans: Spans) -> list[int]:
    inside = {i for begin, stop in spans for i in range(begin, stop)}
    return [token if i in inside else NOTHING for i, token in enumerate(tokens)]


def _of_spans(change: Callable[[list[int], Spans], Spans]) -> Callable[[list[int]], list[int]]:
    return lambda tokens: _labels(tokens, change(tokens, _spans(tokens)))


MISTAKES: tuple[tuple[Callable[[list[int]], list[int]], str], ...] = (
    (list, "The user's words are learned as well: the model would also write questions."),
    (
        _of_spans(lambda _, spans: [(begin - len(HEADER), stop) for begin, stop in spans]),
        "The header is learned as well: the template writes it, not the model.",
    ),
    (
        _of_spans(lambda t, spans: [(b, s - (s > b and t[s - 1] == END)) for b, s in spans]),
        "The end of an answer is not learned: such a model never stops.",
    ),
    (
        lambda tokens: [*_labels(tokens, _spans(tokens))[1:], NOTHING],
        "All labels are one place to the left. The loss shifts them too, so each is shifted twice.",
    ),
    (_of_spans(lambda _, spans: spans[-1:]), "Only the last answer is learned: all of them should be."),
    (_of_spans(lambda _, spans: spans[:1]), "Only the first answer is learned: all of them should be."),
    (
        _of_spans(lambda tokens, spans: [(begin, len(tokens)) for begin, _ in spans]),
        "It continues after an answer's end: what follows belongs to the user.",
    ),
    (
        _of_spans(lambda t, spans: [(b, s) for b, s in spans if s > b and t[s - 1] == END]),
        "The last answer was cut off, and its tokens are missing: it should be learned up to the last token.",
    ),
    (
        lambda tokens: [0 if label == NOTHING else label for label in _labels(tokens, _spans(tokens))],
        "0 is a token like any other and would be learned: the loss ignores only -100.",
    ),
)


def _answer(function: Any, tokens: list[int]) -> list[int]:
    """What the learner's function gives, as a list of whole numbers."""
    made = Call((list(tokens), list(HEADER), END))
    value, written = call(function, NAME, made), made.written(NAME)
    if value is None:
        raise Wrong(f"`{written}` gave nothing (None). Is a `return` missing?")
    try:
        labels = [int(label) for label in value] if isinstance(value, Iterable) else None
    except (TypeError, ValueError):
        labels = None
    if labels is None:
        raise Wrong(f"`{written}` gave {shown(value)}; wanted a list of whole numbers.")
    if len(labels) != len(tokens):
        raise Wrong(f"`{written}` holds {len(labels)} labels for {len(tokens)} tokens: each has one.")
    return labels


def check(names: dict[str, Any]) -> str:
    """Several turns, cut ones, an empty answer, and none at all."""
    function = names[NAME]
    answer = {case: _answer(function, tokens) for case, tokens in CASES.items()}
    wanted = {case: _labels(tokens, _spans(tokens)) for case, tokens in CASES.items()}
    if answer != wanted:
        advice = next(
            (s for rule, s in MISTAKES if all(answer[c] == rule(list(t)) for c, t in CASES.items())), ""
        )
        case = next(case for case in CASES if answer[case] != wanted[case])
        place = next(i for i, label in enumerate(wanted[case]) if answer[case][i] != label)
        raise Wrong(
            f"In {case}, {CASES[case]} with the header {HEADER} and the end {END}, token {place} has the "
            f"label {answer[case][place]}; wanted {wanted[case][place]}. {advice}".rstrip()
        )
    learned = sum(label != NOTHING for labels in wanted.values() for label in labels)
    return f"{learned} of {sum(map(len, CASES.values()))} tokens are learned, in {len(CASES)} conversations"
