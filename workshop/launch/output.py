"""Many ranks, one text: what the ranks printed, read while it grows, folded where they agree.

Each rank writes to a file of its own (`child/rank_io.py`), so no line is ever cut by another. From
these files one text is made, in rank order, in which a line that several ranks printed stands once,
with their numbers::

    [ranks 0-3] step 1
    [rank 0] loss 2.31
    [ranks 1-3] loss 2.29

What was printed in one piece, such as a table, is one block: its lines stand together, and only blocks that
are equal as a whole are folded. The same program gives the same text every time, whatever the order in which
the lines arrived. A flood is shortened: a rank's first and last lines are kept in memory, the rest stays in
the file, and the text says where.

While the ranks run (`Live`) there are three views of the same text: ``folded``, in the order of the ranks, as
it will stand at the end; ``time``, in the order in which the lines came, new ones last; or one rank's alone.
Something is shown at once, then when there is news, at most ten times a second. A cell that runs on without a
word shows its seconds, so that it does not look dead; and where one rank can be said to be behind the others,
its last line, beside the newest of all: folded text hides both.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from workshop.launch import rank_folder

Who = TypeVar("Who", int, tuple[int, int])  # a rank, or a replica and a rank of it

HEAD_LINES = 400
TAIL_LINES = 100
LONGEST_LINE = 2_000
ARRIVED_LINES = 200  # of the text by time
GOES_ON = b"\x1f"  # ends a line to which the next belongs (`child/rank_io.py` writes it)
_READ_AT_ONCE = 1 << 20

Show = Callable[[str, str], None]  # (first line, text so far)
Watch = Callable[["Transcript"], None]
NEWS_SECONDS, CLOCK_SECONDS = 0.1, 1.0
SILENT_SECONDS = 2.0  # a cell shorter than this shows no clock
LONGEST_TOLD = 60  # characters of a line beside the clock
FOLDED, BY_TIME = "folded", "time"


class RankLog:
    """One rank's text, read from where it was left; memory is bounded whatever the rank prints.

    head, tail, news: blocks, whose lines are separated by newlines; ``news`` has those of the last `read`.
    """

    def __init__(self, path: Path, start: int = 0):
        self.path = path
        self.position = start
        self.head: list[str] = []
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.news: deque[str] = deque(maxlen=ARRIVED_LINES)
        self.count = 0
        self._head_lines = 0
        self._partial = b""
        self._block: list[str] = []

    def read(self, at_most: int = 8 * _READ_AT_ONCE) -> bool:
        """Take in what was written since; True when there was anything."""
        taken = 0
        self.news.clear()
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.position)
            while taken < at_most and (block := file.read(_READ_AT_ONCE)):
                taken += len(block)
                self._add(block)
        self.position += taken
        return taken > 0

    def _add(self, block: bytes) -> None:
        *whole, self._partial = (self._partial + block).split(b"\n")
        for line in whole:
            self._keep(line)
        if len(self._partial) > 64 * LONGEST_LINE:  # an endless line: its beginning is enough
            self._partial = self._partial[:LONGEST_LINE] + b"\x00"

    def _keep(self, line: bytes) -> None:
        text = line.rstrip(b"\r" + GOES_ON).rpartition(b"\r")[2].decode("utf-8", "replace")
        if len(text) > LONGEST_LINE:
            text = f"{text[:LONGEST_LINE]}... (a line of {len(text):,} characters, shortened)"
        self.count += 1
        self._block.append(text)
        if not line.endswith(GOES_ON):
            self._end_block()

    def _end_block(self) -> None:
        block, lines = "\n".join(self._block), len(self._block)
        self._block = []
        self.news.append(block)
        if self._head_lines < HEAD_LINES:
            self.head.append(block)
            self._head_lines += lines
        else:
            self.tail.append(block)

    def finish(self) -> None:
        """Read to the end, which is the end."""
        while self.read():
            pass
        self.end()

    def end(self) -> None:
        """Nothing will follow what was read: a last line without newline counts as a line."""
        if self._partial:
            self._keep(self._partial)
            self._partial = b""
        if self._block:  # the rank was ended within it
            self._end_block()

    def blocks(self) -> list[str]:
        """What is shown of this rank."""
        left_out = self.count - self._head_lines - sum(1 + block.count("\n") for block in self.tail)
        if left_out <= 0:
            return [*self.head, *self.tail]
        return [*self.head, f"... {left_out:,} more lines; the whole log is {self.path} ...", *self.tail]


def rank_label(ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 0-3``, ``ranks 0,2-3``."""
    return _label("rank", ranks)


def replica_label(replicas: Iterable[int]) -> str:
    """``replica 2``, ``replicas 0-1``."""
    return _label("replica", replicas)


def _label(what: str, which: Iterable[int]) -> str:
    numbers = sorted(which)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{what}{'s' if len(numbers) > 1 else ''} {text}"


def fold(texts: Mapping[Who, Sequence[str]]) -> list[tuple[tuple[Who, ...], str]]:
    """One sequence of (ranks, block), every rank's blocks in their own order, equal blocks once.

    The lowest rank that has blocks left leads. Its next block is taken together with every rank that
    is at the same one; a rank that will come to this block later first says what it has before it.
    """
    ranks = sorted(texts)
    at = dict.fromkeys(ranks, 0)
    ahead = {rank: Counter(texts[rank]) for rank in ranks}  # what each rank has yet to say
    folded: list[tuple[tuple[Who, ...], str]] = []

    def take(together: list[Who], line: str) -> None:
        folded.append((tuple(together), line))
        for rank in together:
            at[rank] += 1
            ahead[rank][line] -= 1

    while leaders := [rank for rank in ranks if at[rank] < len(texts[rank])]:
        speaker, wanted = leaders[0], texts[leaders[0]][at[leaders[0]]]
        passed = {speaker}
        while late := [
            r for r in leaders if r not in passed and texts[r][at[r]] != wanted and ahead[r][wanted] > 0
        ]:
            speaker = late[0]  # it says what it has before the line that is wanted
            wanted = texts[speaker][at[speaker]]
            passed.add(speaker)
        take([r for r in leaders if texts[r][at[r]] == wanted], wanted)
    return folded


def render(texts: Mapping[int, Sequence[str]]) -> str:
    """The folded text with labels, one line each, ending in a newline unless empty."""
    return "".join(labelled(rank_label(ranks), block) for ranks, block in fold(texts))


def labelled(label: str, block: str) -> str:
    """Every line of a block behind its label, each ending in a newline."""
    return "".join(f"[{label}] {line}".rstrip() + "\n" for line in block.split("\n"))


def last_bar(path: Path) -> str:
    """The present state of a rank's progress bar: what follows the last return; "" once the bar is closed."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    if text.endswith("\n"):
        return ""
    return next((part.strip() for part in reversed(text.split("\r")) if part.strip()), "")


def _percent(bar: str) -> float:
    """How far a bar is; one that does not say, not at all."""
    share = re.search(r"(\d+(?:\.\d+)?) ?%", bar)
    return float(share[1]) if share else 0.0


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]+", "0", text)


class Transcript:
    """The logs of all ranks of one cell, read together."""

    def __init__(self, paths: dict[int, Path], starts: dict[int, int] | None = None):
        self.logs = {rank: RankLog(path, (starts or {}).get(rank, 0)) for rank, path in sorted(paths.items())}
        self._arrived: deque[str] = deque(maxlen=ARRIVED_LINES)

    def read(self) -> bool:
        """Take in what is new on every rank; True when anything is."""
        new = [log.read() for log in self.logs.values()]
        if any(new):
            self._arrive()
        return any(new)

    def finish(self) -> None:
        """Read every log to its end."""
        while self.read():
            pass
        for log in self.logs.values():
            log.end()
        self._arrive()

    def _arrive(self) -> None:
        news = {rank: list(log.news) for rank, log in self.logs.items()}
        self._arrived += render(news).splitlines(keepends=True)

    def text(self) -> str:
        """The folded text so far."""
        return render({rank: log.blocks() for rank, log in self.logs.items()})

    def by_time(self) -> str:
        """The last lines, in the order in which `read` met them."""
        return "".join(self._arrived)

    def of_rank(self, rank: int) -> str:
        """The text of one rank alone."""
        return render({rank: self.logs[rank].blocks()} if rank in self.logs else {})

    def bar(self, rank: int | None = None) -> str:
        """The progress bar of a rank, or of the one that is least far, behind its label."""
        bars = {
            number: bar
            for number, log in self.logs.items()
            if rank in (None, number) and (bar := last_bar(log.path.with_name(rank_folder.BARS)))
        }
        if not bars:
            return ""
        last = min(bars, key=lambda number: _percent(bars[number]))
        return f"[{rank_label([last])}] {bars[last]}"

    def newest(self) -> str:
        """The line that came last, behind its label; "" before there is one."""
        return self._arrived[-1].rstrip("\n") if self._arrived else ""

    def behind(self) -> str:
        """The last line of the rank that is least far, behind its label; "" where none can be said to be.

        A rank that printed fewer lines is behind where the one with the most has passed such a line as its
        last, numbers aside. (Where rank 0 alone prints, or each prints its own, nothing can be said.)
        """
        printed = {rank: log for rank, log in self.logs.items() if log.count}
        if len(printed) < 2:
            return ""
        ahead = max(printed.values(), key=lambda log: log.count)
        passed = {_without_numbers(block) for block in ahead.blocks()[-TAIL_LINES:]}
        last = {rank: log.blocks()[-1] for rank, log in printed.items() if log.count < ahead.count}
        slow = [rank for rank in last if _without_numbers(last[rank]) in passed]
        if not slow:
            return ""
        rank = min(slow, key=lambda rank: printed[rank].count)
        return labelled(rank_label([rank]), last[rank].split("\n")[-1]).rstrip("\n")


class Readable(Protocol):
    """What is written by many and read as one text: a `Transcript`, or the one of replicas."""

    def read(self) -> bool:
        """Take in what is new; True when there is anything."""

    def text(self) -> str:
        """The text so far."""

    def bar(self) -> str:
        """A progress bar, or nothing."""


class Live:
    """Calls ``show`` while ranks run.

    Args:
        show: is given the first line and the text so far.
        view: `FOLDED`, `BY_TIME`, or the number of a rank.
        watch: is given the transcript each time, before ``show``: for who shows more than one view of it.
    """

    def __init__(self, show: Show, view: str | int = FOLDED, watch: Watch | None = None):
        self.show = show
        self.view = view
        self.watch = watch
        self._sentence = self._text = ""
        self._began = self._shown = 0.0

    def begin(self, sentence: str) -> None:
        """The ranks are about to start: show the first line."""
        self._sentence = sentence
        self._began = self._shown = time.monotonic()
        self.show(sentence, "")

    def look(self, transcript: Readable) -> None:
        """Show what is new, if it is time to."""
        now = time.monotonic()
        if now - self._shown < NEWS_SECONDS:
            return
        silent = now - self._shown > CLOCK_SECONDS and now - self._began > SILENT_SECONDS
        bar = self._bar(transcript)
        if not (transcript.read() or bar or silent):
            return
        clock = self._clock(transcript, now)
        before, self._text = self._text, self._view(transcript) + "\n".join(filter(None, (bar, clock)))
        self._shown = now
        if self.watch is not None and isinstance(transcript, Transcript):
            self.watch(transcript)
        if self._text != before:
            self.show(self._sentence, self._text)

    def _clock(self, transcript: Readable, now: float) -> str:
        """``... 12 s; slowest [rank 1] step 3; newest [rank 0] step 9``; "" while it is early."""
        if now - self._began <= SILENT_SECONDS:
            return ""
        parts = [_seconds(now - self._began)]
        if isinstance(transcript, Transcript) and self.view == FOLDED and (behind := transcript.behind()):
            parts += [f"slowest {_short(behind)}", f"newest {_short(transcript.newest())}"]
        return "; ".join(parts)

    def _bar(self, transcript: Readable) -> str:
        if isinstance(transcript, Transcript) and isinstance(self.view, int):
            return transcript.bar(self.view)
        return transcript.bar()

    def _view(self, transcript: Readable) -> str:
        if isinstance(transcript, Transcript) and self.view != FOLDED:
            return transcript.by_time() if self.view == BY_TIME else transcript.of_rank(int(self.view))
        return transcript.text()


def live_of(on_output: Show | Live | None) -> Live | None:
    """Who wants to see what the ranks print, as `Live`."""
    return on_output if on_output is None or isinstance(on_output, Live) else Live(on_output)


def _short(line: str) -> str:
    return line if len(line) <= LONGEST_TOLD else f"{line[:LONGEST_TOLD]}..."


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"... {minutes} min {rest} s" if minutes else f"... {rest} s"
