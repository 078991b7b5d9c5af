"""``%room``: join a room knowingly, leave it, share answers or not. Joined, a notebook writes how far it is.

After each cell the progress and the guesses are looked at, and written to the room where they have changed;
what the instructor has pushed is shown below the next ``%exercise``, ``%%exercise`` or ``%progress``. In a
notebook whose learner never joined nothing of this happens: there is no seat, and no file is touched.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from workshop.classroom.folder import find_room
from workshop.classroom.push import pushed_to
from workshop.classroom.seat import (
    Seat,
    doctor_summary,
    join,
    named_room,
    taken_seat,
    user,
    words_before_joining,
    words_before_sharing_code,
)
from workshop.classroom.state import DoctorSummary
from workshop.exercises.engine.guess import GUESSES
from workshop.exercises.engine.progress import Progress, progress_file
from workshop.jupyter.flags import explain_errors, read_flags

ACTIONS = ("status", "join", "leave", "share-code", "keep-code", "news")
_ASKS = re.compile(r"^\s*%{1,2}(?:exercise|progress)\b", re.MULTILINE)
_ANSWER = re.compile(r"\A\s*%%exercise[ \t]+([a-z0-9_]+)[^\n]*\n(.*)", re.DOTALL)


@magics_class
class RoomMagics(Magics):
    """The ``%room`` of one notebook; registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.seat: Seat | None = taken_seat()
        self.progress = Progress(progress_file())
        self._listens = False
        if self.seat is not None:
            self._listen()

    def _listen(self) -> None:
        """Hear of each cell from now on. Who is in no room walks through none of this."""
        if not self._listens:
            self.shell.events.register("post_run_cell", self.after_cell)
        self._listens = True

    @explain_errors("%room")
    @line_magic
    @magic_arguments()
    @argument("action", nargs="?", choices=ACTIONS, default="status", help="nothing is status")
    @argument("folder", nargs="?", default="", help="the room's folder (default: WORKSHOP_ROOM)")
    @argument("--name", default="", help="what you are called there (default: your user's name)")
    @argument("--agree", action="store_true", help="do it; without it you are told what would be shared")
    @argument(
        "--no-doctor", action="store_true", help="join without looking at this machine, which takes 10 s"
    )
    @argument("--forget", action="store_true", help="with leave: remove what was written, too")
    def room(self, line: str) -> None:
        """Say in which room you are; join, leave, share your answers or keep them, see all news again."""
        options = read_flags(self.room, line)
        if options.action == "join":
            self._join(options)
        elif options.action == "status":
            print(self._status())
        elif self.seat is None:
            raise ValueError("you are in no room: %room join")
        elif options.action == "leave":
            self.seat.leave(forget=options.forget)
            print(f"Left: nothing is written to {self.seat.consent.folder} any more.")
            self.seat = None
        elif options.action == "news":
            room = find_room(self.seat.consent.folder)
            for pushes in pushed_to(room, self.seat.consent.learner).values():
                for one in pushes:
                    display(one)
        else:
            self._code(options)

    def _status(self) -> str:
        if self.seat is not None:
            return f"{self.seat} `%room leave` ends it."
        if named_room():
            return words_before_joining(find_room(named_room()), user())
        return (
            "You are in no room, and nothing is shared. A room is a shared folder: `%room join /its/folder`."
        )

    def _join(self, options: Any) -> None:
        folder = options.folder.strip("\"'") or named_room()
        name = options.name.strip("\"'") or user()
        print(words_before_joining(find_room(folder), name, not options.no_doctor))
        if not options.agree:
            named = f"--name {options.name}" if options.name else ""
            typed = ("%room join", options.folder, named, "--no-doctor" * options.no_doctor, "--agree")
            print(f"`{' '.join(filter(None, typed))}` joins.")
            return
        self.seat = join(folder, name)
        self._listen()
        self._write(None if options.no_doctor else doctor_summary())
        print(f"Joined. {self.seat}")
        self._tell()

    def _code(self, options: Any) -> None:
        assert self.seat is not None
        if options.action == "keep-code":
            self.seat.share_code(False)
            print("Your code is not shared any more; what was there is removed.")
        elif options.agree:
            self.seat.share_code(True)
            print(self.seat)
        else:
            print(words_before_sharing_code(find_room(self.seat.consent.folder)))
            print("`%room share-code --agree` begins it.")

    def after_cell(self, result: Any) -> None:
        """Write what has changed; show what was pushed if the cell asked for an exercise or the progress."""
        if self.seat is None:
            return
        source = str(getattr(getattr(result, "info", None), "raw_cell", "") or "")
        if answer := _ANSWER.match(source):
            self.seat.keep_code(*answer.groups())
        self._write()
        if _ASKS.search(source):
            for one in self.seat.news():
                display(one)
        self._tell()

    def _write(self, doctor: DoctorSummary | None = None) -> None:
        assert self.seat is not None
        self.seat.update(self.progress.so_far(), GUESSES.kept(), doctor)

    def _tell(self) -> None:
        if self.seat is not None:
            for sentence in self.seat.complaints():
                print(sentence)
