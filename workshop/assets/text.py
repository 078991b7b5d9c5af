"""Text to train and to score language models on: the State of the Union addresses, and Python's own manual.

The addresses run from 1790 to 2021, in the English of their time: a natural split by date, and
enough (10.8 million characters) that a small model does not see the same page twice in a lesson. The manual
(`pydoc_data.topics`) needs no download; it is short, and it differs a little between releases of Python.
"""

from __future__ import annotations

from workshop.assets.store import folder
from workshop.facts.checks import check_choice

NAMES = ("sotu", "manual")


def load(name: str = "sotu") -> dict[str, str]:
    """Texts by name, in order: for ``sotu`` by year (``1863_abraham_lincoln_r``), for ``manual`` by topic.

    Raises:
        ValueError: there is no text of that name.
        Unavailable: it is not here and cannot be fetched.
    """
    check_choice("text", name, NAMES)
    if name == "manual":
        from pydoc_data.topics import topics

        return {topic: topics[topic].strip() for topic in sorted(topics)}
    return {path.stem: path.read_text("utf-8") for path in sorted(folder("sotu").glob("[0-9]*.txt"))}
