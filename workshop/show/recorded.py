"""What a lesson said on a GPU, beside what its page says: the records of `make gpu`.

    show.recorded_run("22_ddp")

One line where there is no record yet. Where there is one: device, date, whether it ran to its end, and the
lines that a cell printed differently there, in two columns. The line that says where ranks are is no
difference (the sentence says if they were on that machine's CPU), nor are a library's warnings. Where other
lessons ran beside it, times are those of a crowded GPU: cells that tell times are left out. So is a cell
whose code has been rewritten since (a comment is no code), and one that shows another record of `make gpu`,
which is the same on every machine. Who runs `make gpu` on another card sees a
sentence of that run too.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from typing import Any

from workshop.facts.checks import check_choice
from workshop.facts.tree import ROOT
from workshop.show.gpu_records import RECORDS, cards

RECORD = RECORDS / "lessons.json"
MOST_CELLS, MOST_LINES = 6, 12
KEPT_LINES = 60  # of a cell, in the record
LONGEST_REASON = 160  # characters
PLACED = re.compile(r"^(?:\d+ replicas? of )?\d+ ranks? (?:on|share) ", re.MULTILINE)
_ON_CPU = re.compile(r"^(?:\d+ replicas? of )?\d+ ranks? on CPU\b", re.MULTILINE)
TIMED = re.compile(
    r"\d\s?(?:ns|µs|ms|s|seconds?|minutes?)\b|/s\b|\bMFU\b|\bidle\b|\broof|of the peak|\d times|of the time"
)
# A warning has its own source line below it, indented; a model is converted where it is used first.
_WARNING = re.compile(r"Warning: |warnings?\.warn|_warn_once\(|^\[transformers\] |^converting smollm2 ")
_ITS_LINE = re.compile(r"^(\[ranks? [\d, -]+\] )?  \S")
_SETTING = re.compile(r":(?=\s|$)|-{3,}")  # a colon after a word, a rule below a heading
_NOT_PYTHON = ("%%sbatch", "%%bash", "%%sh", "%%writefile", "%%html")  # magics of other languages
_EXCEPTION = re.compile(r"^\w+(?:Error|Failed|Exception)\b.*$", re.MULTILINE)
NOT_RUN = "On a GPU this lesson has not been run yet: `make gpu` records it."
TAG = "gpu-record"  # of the cell that shows this: what it says on either machine is no result
_OTHER_RECORD = "show.measured_on_gpu("  # a cell with this call shows numbers that this run did not make
MACHINE = "this-machine"  # tag of a cell that tells of the machine itself, as the doctor does


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
        rows = "".join(f"<tr>{_html_cell(here)}{_html_cell(there)}</tr>" for here, there in self.cells)
        head = "<tr><th>on this page</th><th>there</th></tr>" if rows else ""
        sentence = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(self.sentence))
        return f"<p>{sentence}</p>" + (f"<table>{head}{rows}</table>" if rows else "")


def _html_cell(printed: str) -> str:
    """What a cell printed, as it stands: notebooks set tables to the right, and may break lines in a word."""
    text = (
        "font-family:monospace;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;background:none"
    )
    return f'<td style="text-align:left;vertical-align:top"><pre style="{text}">{escape(printed)}</pre></td>'


def recorded_run(
    lesson: str, record: Path = RECORD, share_gpu: bool = False, device: str | None = None
) -> RecordedRun:
    """The run of a lesson that is recorded on a GPU.

    Args:
        lesson: its file's name without the ending.
        record: where it is recorded. Records of other cards lie in folders beside it.
        share_gpu: the run in which its ranks shared one GPU.
        device: the card whose cells are shown; the workshop's own by default.

    Returns:
        What shows itself: a sentence for each card that has a record of this lesson, and one card's cells.

    Raises:
        ValueError: A lesson that there is not, or a card that has no record of it.
    """
    pages = {path.stem: path for path in (ROOT / "notebooks").glob("day*/*.ipynb")}
    new = {path.stem for path in (ROOT / "notebooks" / "source").glob("day*/*.py")} - set(pages)
    if lesson in new:  # it is being executed for the first time
        return RecordedRun(lesson, NOT_RUN)
    if lesson not in pages:
        raise ValueError(f"there is no lesson {lesson!r}; there are {', '.join(sorted(pages))}")
    name = lesson + (" --share-gpu" if share_gpu else "")
    runs = {
        card: run
        for card, path in cards(record.stem, record.parent).items()
        if (run := _run_on(json.loads(path.read_text("utf-8")), lesson, name, pages[lesson]))
    }
    if device is not None:
        check_choice("device", device, runs)
        return runs[device]
    if not runs:
        return RecordedRun(lesson, NOT_RUN)
    first, *others = runs.values()
    return replace(first, sentence=" ".join(one.sentence for one in (first, *others)))


def _run_on(record: dict[str, Any], lesson: str, name: str, page: Path) -> RecordedRun | None:
    """The run of one card's record; None where this lesson had no turn there."""
    part = record["parts"].get(name)
    if part is None or part["status"] == "left out":
        return None
    day, torch = part.get("date", record["date"]), part.get("torch", record["machine"]["versions"]["torch"])
    where = f"{record['device']}, {day}, torch {torch}"
    if part["status"] != "done":
        since = f" ({part['since']})" if part.get("since") else ""
        why = _reason(part.get("why", part["status"]))
        return RecordedRun(lesson, f"On {where}, it did not run to its end: {why}{since}.")
    here, left_out = _printed(page)
    printed = {cell: text for cell, text in part["rows"][0]["cells"].items() if cell not in left_out}
    took, sources = part["rows"][-1], part["rows"][0].get("sources", {})
    same = [
        cell for cell in printed if cell in here and sources.get(cell, here[cell].digest) == here[cell].digest
    ]
    pairs = [(_lines(here[cell].printed), _lines(printed[cell])) for cell in same]
    differ = [pair for pair in pairs if _words(pair[0]) != _words(pair[1])]
    beside = word = ""
    if others := took.get("others"):
        beside = f", with up to {others} other lessons beside it"
        timed = [pair for pair in differ if any(TIMED.search(line) for lines in pair for line in lines)]
        differ = [pair for pair in differ if pair not in timed]
        if timed:
            beside, word = f"{beside}, so cells that tell times are not compared", "other "
    many = f"; {len(differ)} {word}cell{'s' * (len(differ) > 1)} printed something else" if differ else ""
    many += f", of which the first {MOST_CELLS} are shown" if len(differ) > MOST_CELLS else ""
    many += _ranks_on_cpu(part["rows"][0]["cells"].values())
    many += "; what it printed was not kept" if not part["rows"][0]["cells"] else ""
    if rewritten := len(printed) - len(same):
        have = "have" if rewritten > 1 else "has"
        many += f"; {rewritten} of the {len(printed)} cells that printed {have} been rewritten since"
    sentence = f"On {where}: it ran to its end in {took['measured']:.0f} s{beside}{many}."
    return RecordedRun(lesson, sentence, tuple(_apart(*pair) for pair in differ[:MOST_CELLS]))


def _ranks_on_cpu(printed: Iterable[str]) -> str:
    """What the sentence says of ranks that did not use the GPU, from what each cell printed there."""
    placed = [text for text in printed if PLACED.search(text)]
    on_cpu = [text for text in placed if _ON_CPU.search(text)]
    if not on_cpu:
        return ""
    if len(on_cpu) == len(placed):
        return "; its ranks ran on that machine's CPU"
    return f"; of {len(placed)} cells with ranks, {len(on_cpu)} ran them on that machine's CPU"


def _lines(text: str) -> list[str]:
    """A cell's lines without spaces at their ends, devices and warnings."""
    lines = text.strip().splitlines()[:KEPT_LINES]
    kept = [
        line.rstrip()
        for before, line in zip(["", *lines], lines, strict=False)
        if not (_WARNING.search(line) or ("Warning: " in before and _ITS_LINE.match(line)))
    ]
    return [line for line in kept if line and not PLACED.match(line)]


def _words(lines: list[str]) -> list[str]:
    """Lines as they are compared: the width of a column and a colon in a heading are not what was printed."""
    return [" ".join(_SETTING.sub(" ", line).split()) for line in lines]


def _apart(here: list[str], there: list[str]) -> tuple[str, str]:
    """The lines of both that the other has not, in their order."""
    matched = SequenceMatcher(None, _words(here), _words(there), autojunk=False).get_opcodes()
    changed = [codes[1:] for codes in matched if codes[0] != "equal"]
    return (
        _cut([line for begin, end, _, _ in changed for line in here[begin:end]]),
        _cut([line for _, _, begin, end in changed for line in there[begin:end]]),
    )


def _reason(why: str) -> str:
    """The exception's own line, of a message that may hold a cell and its traceback."""
    named = _EXCEPTION.findall(why)
    line = (named[-1] if named else why.strip().splitlines()[-1]).rstrip(" .:")
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON].rpartition(" ")[0] + " ..."


@dataclass(frozen=True)
class _Cell:
    """What a stored cell printed, and its code's `code_digest`."""

    printed: str
    digest: str


def code_digest(code: str) -> str:
    """Twelve letters that tell one cell's code from another's.

    Comments do not count, nor do spaces at the ends of lines.
    """
    plain = "\n".join(line.rstrip() for line in _without_comments(code).strip().splitlines())
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def _without_comments(code: str) -> str:
    """The lines of a cell that a comment alone does not fill, each without the comment at its end.

    What is no Python comes back as it is: the lines of a magic that takes another language, and a text that
    Python's tokenizer cannot read. So does a magic's own line, and what looks like a comment in a string.
    """
    if code.lstrip().startswith(_NOT_PYTHON):
        return code
    lines = code.splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith("%%")), len(lines))
    body = "\n".join(lines[first:]) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(body).readline))
    except (tokenize.TokenError, SyntaxError):
        return code
    begins = {t.start[0] - 1 + first: t.start[1] for t in tokens if t.type == tokenize.COMMENT}
    kept = [(line, line[: begins.get(i)].rstrip()) for i, line in enumerate(lines)]
    return "\n".join(rest for line, rest in kept if rest or not line.strip())


def lesson_digest(page: Path) -> str:
    """`code_digest` of all code of a stored page but the cell that shows this: has the lesson changed?"""
    cells = json.loads(page.read_text("utf-8"))["cells"]
    code = [
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" and not _shows_this(cell)
    ]
    return code_digest("\n".join(_without_comments(cell) for cell in code))


def _shows_this(cell: dict[str, Any]) -> bool:
    return TAG in cell["metadata"].get("tags", ())


def _printed(page: Path) -> tuple[dict[str, _Cell], set[str]]:
    """What the cells of a stored page print, by their ids; and the ids of those that tell of no run.

    These are the cell that shows this, those that tell of the machine itself or show another record, and
    exercises and guesses: what those print is our words.
    """
    cells, left_out = {}, set()
    for cell in json.loads(page.read_text("utf-8"))["cells"]:
        parts = []
        for output in cell.get("outputs", []):
            shown = output.get("data", {}).get("text/plain")
            parts.append("".join(output.get("text", "")) if shown is None else "".join(shown) + "\n")
        of_machine = MACHINE in cell["metadata"].get("tags", ())
        code = "".join(cell["source"])
        asks = code.startswith(("%%exercise", "%%guess"))
        if _shows_this(cell) or of_machine or asks or _OTHER_RECORD in code:
            left_out.add(cell.get("id", ""))
        else:
            cells[cell.get("id", "")] = _Cell("".join(parts), code_digest(code))
    return cells, left_out


def _cut(lines: list[str]) -> str:
    return "\n".join(lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES))


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
