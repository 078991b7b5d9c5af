"""The answers people give to an exercise, right and wrong: one file, whose cells each have a title.

::

    # %% other: by_slices
    def answer_labels(tokens, header, end):
        ...                                 # right, and of another kind than the solution


    # %% wrong: shifted
    # message: one place to the left
    def answer_labels(tokens, header, end):
        ...                                 # one mistake; the learner must be told the message
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ANSWERS = "answers.py"
KINDS = ("other", "wrong")
_TITLE = "# %%"
_FORM = "`# %% other: NAME` or `# %% wrong: NAME`"
_MESSAGE = "# message:"


@dataclass(frozen=True)
class Answer:
    """A whole answer; where it is wrong, ``message`` is a part of what the learner must be told."""

    name: str
    source: str
    message: str = ""


def read_answers(file: Path) -> dict[str, tuple[Answer, ...]]:
    """The answers of a file by kind, ``"other"`` (right) and ``"wrong"``, in the order of the file.

    Raises:
        ValueError: there is no file, a line above a cell is not of the form, a name occurs twice, an answer
            lacks its code or a wrong one its message, or code stands above the first cell. Says which, and
            what to write.
    """
    answers: dict[str, list[Answer]] = {kind: [] for kind in KINDS}
    short = f"{file.parent.name}/{file.name}"
    if not file.is_file():
        raise ValueError(f"there is no {short}: a cell for each answer, below {_FORM}.")
    lines = file.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_TITLE)]
    above = [line for line in lines[: starts[0] if starts else None] if line.strip()]
    if above:
        raise ValueError(f"{short} begins with {above[0]!r}; wanted {_FORM}.")
    for start, stop in pairwise([*starts, len(lines)]):
        where = f"{short}, line {start + 1}"
        kind, name = _kind_and_name(lines[start], where)
        if name in [answer.name for answer in answers[kind]]:
            raise ValueError(f"{where}: there is a {kind} answer {name!r} above. Give this one another name.")
        cell, message = lines[start + 1 : stop], ""
        if kind == "wrong":
            message, cell = _message(cell[:1], f"{where}: the wrong answer {name!r}"), cell[1:]
        if not any(line.strip() and not line.startswith("#") for line in cell):
            raise ValueError(
                f"{where}: the {kind} answer {name!r} has no code. Write the whole cell below its title."
            )
        answers[kind].append(Answer(name, "\n".join(cell).strip("\n") + "\n", message))
    return {kind: tuple(answers[kind]) for kind in KINDS}


def _kind_and_name(title: str, where: str) -> tuple[str, str]:
    kind, _, name = title.removeprefix(_TITLE).strip().partition(": ")
    if kind not in KINDS or not name.isidentifier():
        raise ValueError(f"{where}: {title!r}; wanted {_FORM}.")
    return kind, name


def _message(first: list[str], whose: str) -> str:
    """What the first line of a wrong answer says that the learner must be told."""
    message = first[0].removeprefix(_MESSAGE).strip() if first and first[0].startswith(_MESSAGE) else ""
    if not message:
        raise ValueError(
            f"{whose} has no message. On the line below its title write `{_MESSAGE} ...`, "
            "a part of what the learner must be told."
        )
    return message
