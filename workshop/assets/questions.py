"""Labelled short texts, for fine-tuning that can be scored: TREC's questions (`load`), and spam among text
messages (`sms_spam`), which no lesson needs and is there for your own.

TREC's question types (Li and Roth 2002, *Learning Question Classifiers*, COLING): what kind of thing does a
question ask for? Six classes: an abbreviation, a description, an entity, a human, a location, a number.

The file at hand holds 15,452 lines and 5,380 questions: most stand in it several times. A split that came
before the removal of duplicates would put copies of test questions into training, and a model that learned
them by heart would look good. So: duplicates first, then a shuffle with a fixed seed, then the split.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from typing import NamedTuple

from workshop.assets.store import folder
from workshop.facts.checks import check_positive

CLASSES = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}
SHUFFLE_SEED = 2002


class Example(NamedTuple):
    """A text and its label, in a word."""

    text: str
    label: str


@dataclass(frozen=True)
class Split:
    """Examples to train and to test on; no text is in both."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]
    labels: tuple[str, ...]


def load(num_test: int = 500) -> Split:
    """TREC's questions, each once, with labels such as ``location``.

    Raises:
        ValueError: num_test is not between 1 and the number of questions.
        Unavailable: they are not here and cannot be fetched.
    """
    lines = (folder("questions") / "question_labels.txt").read_text("utf-8", errors="replace").splitlines()
    pairs = []
    for line in lines:
        label, _, question = line.strip().partition(" ")
        coarse = label.partition(":")[0]
        if coarse in CLASSES and question:
            pairs.append(Example(" ".join(question.split()), CLASSES[coarse]))
    return _split(pairs, num_test, tuple(CLASSES.values()))


def sms_spam(num_test: int = 800) -> Split:
    """Text messages labelled ``spam`` or ``ham``, each once.

    Raises as `load` does.
    """
    with (folder("questions") / "sms-spam.csv").open(encoding="utf-8", newline="") as file:
        pairs = [
            Example(" ".join(row["text"].split()), "spam" if int(row["spam"]) else "ham")
            for row in csv.DictReader(file)
        ]
    return _split(pairs, num_test, ("ham", "spam"))


def _split(pairs: list[Example], num_test: int, labels: tuple[str, ...]) -> Split:
    """Each text once (in small letters; where its copies disagree on the label, none of them), then "
    "shuffled."""
    labels_of: dict[str, set[str]] = {}
    first: dict[str, Example] = {}
    for pair in pairs:
        key = pair.text.lower()
        labels_of.setdefault(key, set()).add(pair.label)
        first.setdefault(key, pair)
    once = sorted(pair for key, pair in first.items() if len(labels_of[key]) == 1)
    check_positive("num_test", num_test)
    if num_test >= len(once):
        raise ValueError(f"num_test = {num_test}, and there are {len(once):,} texts: give fewer")
    random.Random(SHUFFLE_SEED).shuffle(once)
    return Split(tuple(once[num_test:]), tuple(once[:num_test]), labels)
