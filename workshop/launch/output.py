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
word shows its seconds, so that it does not look dead.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from workshop.launch import rank_folder

Who = TypeVar("Who", int, tuple[int, int])  # a rank, or a replica and a rank of it

HEAD_LINES = 400
TAIL_LINES = 100
LONGEST_LINE = 2_000
ARRIVED_LINES = 200  # of the text by time
GOES_ON = b"\x1f"  # ends a line to which the next belongs (`child/rank_io.py` writes it)
_READ_AT_ONCE = 1 << 20

Show = Callable[[str, str], None]  # (first line, text so far)
NEWS_SECONDS, CLOCK_SECONDS = 0.1, 1.0
SILENT_SECONDS = 2.0  # a cell shorter than this shows no clock
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
        """Read to the end; a last line without newline counts as a line."""
        while self.read():
            pass
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


class Transcript:
    """The logs of all ranks of one cell, read together."""

    def __init__(self, paths: dict[int, Path], starts: dict[int, int] | None = None):
        self.logs = {rank: RankLog(path, (starts or {}).get(rank, 0)) for rank, path in sorted(paths.items())}
        self._arrived: deque[str] = deque(maxlen=ARRIVED_LINES)

    def read(self) -> bool:
        """Take in what is new on every rank; True when anything is."""
        new = [log.read() for log in self.logs.values()]
        if any(new):
            news = {rank: list(log.news) for rank, log in self.logs.items()}
            self._arrived += render(news).splitlines(keepends=True)
        return any(new)

    def finish(self) -> None:
        """Read every log to its end."""
        for log in self.logs.values():
            log.finish()

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
        """The progress bar of a rank, or of the first that draws one, behind its label."""
        for number, log in self.logs.items():
            if rank in (None, number) and (bar := last_bar(log.path.with_name(rank_folder.BARS))):
                return f"[{rank_label([number])}] {bar}"
        return ""


class ReplicaTranscript:
    """The logs of all ranks of all replicas, each rank's attempts one after another.

    alone: a replica has one rank, and its number says enough.
    """

    def __init__(self, alone: bool):
        self.alone = alone
        self.logs: dict[tuple[int, int], list[RankLog]] = {}

    def add(self, replica: int, rank: int, path: Path) -> None:
        """A rank has started, or has started again."""
        earlier = self.logs.setdefault((replica, rank), [])
        if earlier:
            earlier[-1].finish()
        earlier.append(RankLog(path))

    def read(self) -> bool:
        """Take in what was written since; True when there was anything."""
        return sum(attempts[-1].read() for attempts in self.logs.values()) > 0

    def finish(self) -> None:
        """Read every log to its end."""
        for attempts in self.logs.values():
            attempts[-1].finish()

    def text(self, replica: int | None = None) -> str:
        """The folded text so far, of one replica or of all."""
        lines = {
            who: [line for at, log in enumerate(logs) for line in [*_again(at), *log.blocks()]]
            for who, logs in self.logs.items()
            if replica in (None, who[0])
        }
        return "".join(labelled(self._who(which), block) for which, block in fold(lines))

    def _who(self, which: Iterable[tuple[int, int]]) -> str:
        """``replicas 0-2``; where they have several ranks, ``replicas 0-1 ranks 0-1, replica 2 rank 0``."""
        ranks: dict[int, list[int]] = {}
        for replica, rank in which:
            ranks.setdefault(replica, []).append(rank)
        if self.alone:
            return replica_label(ranks)
        alike: dict[tuple[int, ...], list[int]] = {}
        for replica, its in ranks.items():
            alike.setdefault(tuple(its), []).append(replica)
        return ", ".join(f"{replica_label(those)} {rank_label(its)}" for its, those in alike.items())

    def bar(self) -> str:
        """The first progress bar that a rank draws, behind its label."""
        for who, attempts in sorted(self.logs.items()):
            if bar := last_bar(attempts[-1].path.with_name("bars")):
                return f"[{self._who([who])}] {bar}"
        return ""


def _again(attempt: int) -> list[str]:
    return [f"--- attempt {attempt + 1} ---"] if attempt else []


class Live:
    """Calls ``show`` while ranks run.

    Args:
        show: is given the first line and the text so far.
        view: `FOLDED`, `BY_TIME`, or the number of a rank.
    """

    def __init__(self, show: Show, view: str | int = FOLDED):
        self.show = show
        self.view = view
        self._sentence = self._text = ""
        self._began = self._shown = 0.0

    def begin(self, sentence: str) -> None:
        """The ranks are about to start: show the first line."""
        self._sentence = sentence
        self._began = self._shown = time.monotonic()
        self.show(sentence, "")

    def look(self, transcript: Transcript | ReplicaTranscript) -> None:
        """Show what is new, if it is time to."""
        now = time.monotonic()
        if now - self._shown < NEWS_SECONDS:
            return
        silent = now - self._shown > CLOCK_SECONDS and now - self._began > SILENT_SECONDS
        bar = self._bar(transcript)
        if not (transcript.read() or bar or silent):
            return
        clock = _clock(now - self._began) if now - self._began > SILENT_SECONDS else ""
        before, self._text = self._text, self._view(transcript) + "\n".join(filter(None, (bar, clock)))
        self._shown = now
        if self._text != before:
            self.show(self._sentence, self._text)

    def _bar(self, transcript: Transcript | ReplicaTranscript) -> str:
        if isinstance(transcript, Transcript) and isinstance(self.view, int):
            return transcript.bar(self.view)
        return transcript.bar()

    def _view(self, transcript: Transcript | ReplicaTranscript) -> str:
        if isinstance(transcript, Transcript) and self.view != FOLDED:
            return transcript.by_time() if self.view == BY_TIME else transcript.of_rank(int(self.view))
        return transcript.text()


def live_of(on_output: Show | Live | None) -> Live | None:
    """Who wants to see what the ranks print, as `Live`."""
    return on_output if on_output is None or isinstance(on_output, Live) else Live(on_output)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"... {minutes} min {rest} s" if minutes else f"... {rest} s"
