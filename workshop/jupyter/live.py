"""What a parallel cell shows while it runs and when it is done.

One display is made when the cell starts; it holds the first line ("4 ranks on CPU, gloo") and, while
the ranks run, what they have printed so far (`workshop.launch.output`). At the end it shrinks to the first
line again and the final text is printed below it, so that a saved notebook holds plain text that nbval can
compare.
"""

from __future__ import annotations

from typing import Any

_LIVE_LINES = 40


class _Plain:
    """An object that shows itself as this text, without quotes."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class LiveView:
    """The display of one parallel cell. Outside Jupyter it prints the end result only."""

    def __init__(self, ip: Any):
        self.ip = ip
        self.handle: Any = None
        self.sentence = ""
        self.updated = False

    def __call__(self, sentence: str, text: str) -> None:
        """Show the first line at once, and the text so far as often as this is called."""
        self.begin(sentence)
        if self.handle is not None and text:
            shown = text.splitlines()[-_LIVE_LINES:]
            self.handle.update(_Plain("\n".join([sentence, *shown])))
            self.updated = True

    def begin(self, sentence: str) -> None:
        """Show the first line."""
        if self.sentence:
            return
        self.sentence = sentence
        if getattr(self.ip, "kernel", None) is None:
            print(sentence)
            return
        from IPython.display import display

        self.handle = display(_Plain(sentence), display_id=True)

    def end(self, result: Any) -> None:
        """The final text, then figures and other rich output with the rank they came from."""
        self.begin(result.device)
        if self.updated:
            self.handle.update(_Plain(self.sentence))
        if result.text:  # a flush costs half a millisecond, a tenth of a cell
            print(result.text, end="", flush=True)
        for rank, content in getattr(result, "rich", ()):
            print(f"[rank {rank}]", flush=True)
            self.ip.display_pub.publish(content["data"], content.get("metadata", {}))
        if getattr(result, "healed", ""):
            print(result.healed, flush=True)
