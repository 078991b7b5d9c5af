"""What the ranks print, behind tabs: all together, by time, or one rank alone, while they run and afterwards.

While a cell runs its kernel hears no clicks, so the tabs are ipywidgets', which the page turns by itself. A
widget lives as long as the page: afterwards `leaves` says the same in HTML that folds and unfolds without a
script, in the place of the tabs, and stays in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from workshop.launch.output import Transcript

ALL, BY_TIME = "all ranks", "by time"
MOST_RANKS = 16  # more tabs than this are no help; `--live 40` shows rank 40
LINES = 40  # of a tab, while the ranks run
KEPT_LINES = 200  # of a leaf, afterwards
LONGEST = 20_000  # characters of a leaf


def views(transcript: Transcript) -> dict[str, str]:
    """The text by time, and each rank's alone, by the tab's name; of many ranks the first ones."""
    ranks = list(transcript.logs)[:MOST_RANKS]
    return {BY_TIME: transcript.by_time(), **{f"rank {rank}": transcript.of_rank(rank) for rank in ranks}}


class RankTabs:
    """The tabs of one running cell. ``box`` is the widget."""

    def __init__(self, names: list[str]):
        import ipywidgets

        self.pages = {name: ipywidgets.HTML() for name in (ALL, *names)}
        self.box = ipywidgets.Tab(list(self.pages.values()), titles=list(self.pages))

    def show(self, text: str, others: Mapping[str, str]) -> None:
        """Put these texts behind the tabs: the one of all ranks, and the others by name."""
        for name, value in {ALL: text, **others}.items():
            if name in self.pages:
                self.pages[name].value = preformatted("\n".join(value.splitlines()[-LINES:]))

    def close(self) -> None:
        """The cell is over: nothing of the widgets is left in the kernel."""
        for widget in (*self.pages.values(), self.box):
            widget.close()

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        return {**(self.box._repr_mimebundle_() or {}), "text/plain": "what the ranks print"}


def leaves(sentence: str, texts: Mapping[str, str]) -> str:
    """The first line of a cell's output; below it, folded away, each of the texts. HTML without a script."""
    inside = "".join(
        f"<details><summary>{escape(name)}</summary>{preformatted(_end(text))}</details>"
        for name, text in texts.items()
        if text
    )
    hint = "<small>read it by time, or one rank alone</small>"
    body = f'<div style="padding-left:1.2em">{inside}</div>'
    return f"<details><summary>{escape(sentence)} · {hint}</summary>{body}</details>"


def preformatted(text: str) -> str:
    """Text as it stands, in the notebook's own colours; long lines are broken, so that nothing is cut."""
    look = (
        "margin:0;padding:0.2em 0;font-size:var(--jp-code-font-size);line-height:1.3;"
        "white-space:pre-wrap;overflow-wrap:anywhere"
    )
    return f'<pre style="{look}">{escape(text, quote=False)}</pre>'


def _end(text: str) -> str:
    lines = text.splitlines()
    cut = f"... {len(lines) - KEPT_LINES:,} lines before these\n" if len(lines) > KEPT_LINES else ""
    return cut + "\n".join(lines[-KEPT_LINES:])[-LONGEST:]
