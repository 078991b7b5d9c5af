"""The learner's program: how it is run, and which lines are its own.

A rehearsal that fails, assumes something or takes too long names a line. That line is looked for among the
program's own files: everything below the script's folder (or the cell's working folder) except what is
installed there (`site-packages`), the standard library and this package.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
import types
from pathlib import Path

from workshop.rehearse.request import Request

CELL = "<rehearsed cell>"
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Program:
    """One program of a request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.file = str(Path(request.path).resolve()) if request.path else CELL
        self._folder = str(Path(self.file).parent if request.path else Path.cwd()) + os.sep
        ours = str(Path(__file__).resolve().parents[1]) + os.sep
        self._others = (sysconfig.get_paths()["stdlib"] + os.sep, ours)
        self._owned: dict[str, bool] = {}

    def run(self) -> None:
        """Execute it; with a function named, call that function with the request's arguments."""
        request = self._request
        name = "__rehearsed__" if request.function else "__main__"
        module = types.ModuleType(name)
        text = request.source
        if request.path:
            text = Path(self.file).read_text()
            module.__file__ = self.file
        else:
            linecache.cache[CELL] = (len(text), None, text.splitlines(keepends=True), CELL)
        sys.path.insert(0, self._folder.rstrip(os.sep))
        sys.modules[name] = module
        sys.argv = [self.file, *([] if request.function else map(str, request.arguments))]
        exec(compile(text, self.file, "exec"), module.__dict__)
        if request.function:
            getattr(module, request.function)(*request.arguments, **request.keywords)

    def owns(self, filename: str) -> bool:
        """Whether a line of this file is the learner's to change."""
        owned = self._owned.get(filename)
        if owned is None:
            owned = filename == self.file or (
                filename.startswith(self._folder)
                and not filename.startswith(self._others)
                and not any(part in filename for part in _INSTALLED)
            )
            self._owned[filename] = owned
        return owned

    def frame(self, frame: types.FrameType | None) -> types.FrameType | None:
        """The innermost frame of the program's own that led to a frame."""
        while frame is not None and not self.owns(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def place(self, frame: types.FrameType | None) -> tuple[str, int] | None:
        """(file, line) of the innermost of the program's own lines that led to a frame."""
        own = self.frame(frame)
        return (own.f_code.co_filename, own.f_lineno) if own else None

    def here(self) -> str:
        """The line that is being executed, for a note: " (line 12)", or "" if it is not to be told."""
        place = self.place(sys._getframe(1))
        return f" ({self.name_of(place)})" if place else ""

    def name_of(self, place: tuple[str, int]) -> str:
        """`line 12`, with the file's name if it is not the program's first."""
        filename, line = place
        return f"line {line}" if filename == self.file else f"{Path(filename).name}, line {line}"

    def quote(self, place: tuple[str, int] | None) -> str:
        """The line itself, as the first line of a message: "line 12: x.item()"."""
        if place is None:
            return ""
        return f"{self.name_of(place)}: {linecache.getline(*place).strip()}\n"

    def raised_at(self, problem: BaseException) -> tuple[str, int] | None:
        """(file, line) of the innermost of the program's own lines that an error came through."""
        frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if self.owns(frame.filename)]
        return (frames[-1].filename, frames[-1].lineno or 0) if frames else None

    def explain(self, problem: BaseException) -> str:
        """An error in words, after the line of the learner's program where it happened."""
        text = self.quote(self.raised_at(problem))
        if os.environ.get("WORKSHOP_REHEARSE_TRACEBACK"):
            text += "".join(traceback.format_exception(problem))
        return f"{text}{type(problem).__name__}: {problem}"
