"""What is shown of ranks while they run: what they have printed so far, a progress bar, and the time.

Three views of the same text: ``folded``, in the order of the ranks, as it will stand at the end; ``time``, in
the order in which the lines came, new ones last; or one rank's alone. Something is shown at once, then when
there is news, at most ten times a second. A cell that runs on without a word shows its seconds, so that it
does not look dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from workshop.launch.output import ReplicaTranscript, Transcript

Show = Callable[[str, str], None]  # (first line, text so far)
NEWS_SECONDS, CLOCK_SECONDS = 0.1, 1.0
SILENT_SECONDS = 2.0  # a cell shorter than this shows no clock
FOLDED, BY_TIME = "folded", "time"


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
