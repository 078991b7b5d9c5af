"""What a lesson said on a GPU, beside what its page says: the records of `make gpu`.

    show.recorded_run("22_ddp")

One line where there is no record yet. Where there is one: device, date, whether it ran to its end, and cells
that printed something else there than on the page, in two columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from workshop.facts.tree import ROOT

RECORD = ROOT / "data" / "measurements" / "gpu" / "lessons.json"
MOST_CELLS, MOST_LINES = 6, 12
TAG = "gpu-record"  # of the cell that shows this: what it says on either machine is no result


@dataclass(frozen=True)
class RecordedRun:
    """A lesson on a GPU. ``cells``: what each cell printed here and there, where they differ."""

    lesson: str
    sentence: str
    cells: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        shown = [self.sentence]
        for here, there in self.cells:
            shown += ["", "on this page:", *_indented(here), "there:", *_indented(there)]
        return "\n".join(shown)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><pre>{escape(here)}</pre></td><td><pre>{escape(there)}</pre></td></tr>"
            for here, there in self.cells
        )
        head = "<tr><th>on this page</th><th>there</th></tr>" if rows else ""
        return f"<p>{escape(self.sentence)}</p>" + (f"<table>{head}{rows}</table>" if rows else "")


def recorded_run(lesson: str, record: Path = RECORD, share_gpu: bool = False) -> RecordedRun:
    """The run of a lesson that is recorded on a GPU.

    lesson: its file's name without the ending. share_gpu: the run in which its ranks shared one GPU. Raises
    ValueError for a lesson that there is not.
    """
    pages = {path.stem: path for path in (ROOT / "notebooks").glob("day*/*.ipynb")}
    if lesson not in pages:
        raise ValueError(f"there is no lesson {lesson!r}; there are {', '.join(sorted(pages))}")
    found = json.loads(record.read_text("utf-8")) if record.exists() else {"parts": {}}
    part = found["parts"].get(lesson + (" --share-gpu" if share_gpu else ""))
    if part is None or part["status"] == "left out":
        return RecordedRun(lesson, "On a GPU this lesson has not been run yet: `make gpu` records it.")
    where = f"{found['device']}, {found['date']}, torch {found['machine']['versions']['torch']}"
    if part["status"] != "done":
        return RecordedRun(lesson, f"On {where} it did not run to its end: {part.get('why', part['status'])}")
    said, lesson_row = part["rows"][0]["cells"], part["rows"][-1]
    here = _printed(pages[lesson])
    differ = [
        (here[cell], text) for cell, text in said.items() if here.get(cell, text).strip() != text.strip()
    ]
    many = f"; {len(differ)} cells print something else" if differ else ""
    beside = f", with up to {others} other lessons beside it" if (others := lesson_row.get("others")) else ""
    sentence = f"On {where}: green in {lesson_row['measured']:.0f} s{beside}{many}."
    return RecordedRun(lesson, sentence, tuple((_cut(a), _cut(b)) for a, b in differ[:MOST_CELLS]))


def _printed(page: Path) -> dict[str, str]:
    """What the cells of a stored page print, by their ids."""
    found = {}
    for cell in json.loads(page.read_text("utf-8"))["cells"]:
        if TAG in cell["metadata"].get("tags", ()):
            continue
        parts = []
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            parts.append("".join(text))
        found[cell.get("id", "")] = "".join(parts)
    return found


def _cut(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join(lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
