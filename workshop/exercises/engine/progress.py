"""What has been tried and solved, kept in one small local file.

``$WORKSHOP_HOME/progress.json``, or ``$XDG_DATA_HOME/workshop/progress.json`` (usually below
``~/.local/share``). It is written whole and moved into place, so that a crash leaves the old file or the
new one. A file that cannot be read or written costs the memory, never the lesson: it is said once, and
the session goes on without.

Under ``CI`` or ``NBVAL``, or with ``WORKSHOP_PROGRESS=off``, nothing is read or written: a lesson that is
executed to be published or tested must read the same each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

_NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Attempts:
    """One exercise so far: answers judged, hints given, whether one was right."""

    tries: int = 0
    hints: int = 0
    solved: bool = False

    @property
    def state(self) -> str:
        """In a word or two."""
        if self.solved:
            return "solved"
        return "tried" if self.tries else "not begun"


def progress_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where progress is kept; None where it is not to be kept."""
    if any(environ.get(name, "").lower() not in _NO for name in ("CI", "NBVAL")):
        return None
    if environ.get("WORKSHOP_PROGRESS", "on").lower() in _NO:
        return None
    if home := environ.get("WORKSHOP_HOME"):
        return Path(home).expanduser() / "progress.json"
    data = environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        return Path(data).expanduser() / "workshop" / "progress.json"
    except RuntimeError:  # a user without a home: a container's odd user id
        return None


class Progress:
    """Attempts by exercise. ``path=None`` keeps them in memory only."""

    def __init__(self, path: Path | None):
        self.path = path
        self._attempts: dict[str, Attempts] = {}
        self._to_say: list[str] = []
        self._broken = False
        self._read()

    def __getitem__(self, name: str) -> Attempts:
        return self._attempts.get(name, Attempts())

    def so_far(self) -> dict[str, Attempts]:
        """Every exercise that was begun, as of now."""
        self._read()
        return dict(self._attempts)

    def tried(self, name: str, solved: bool) -> None:
        """One more answer was judged. What was solved once stays solved."""
        before = self._latest(name)
        self._write(name, replace(before, tries=before.tries + 1, solved=before.solved or solved))

    def next_hint(self, name: str, available: int) -> int:
        """Index of the hint to give now; after the last hint it is the last again."""
        before = self._latest(name)
        given = min(before.hints, available - 1)
        self._write(name, replace(before, hints=given + 1))
        return given

    def reset(self, name: str) -> None:
        """Forget one exercise."""
        self._latest(name)
        self._write(name, None)

    def complaints(self) -> list[str]:
        """What to tell about the file; each sentence is given once."""
        complaints, self._to_say = self._to_say, []
        return complaints

    def _latest(self, name: str) -> Attempts:
        """The attempts as of now: another notebook may have written since."""
        self._read()
        return self[name]

    def _read(self) -> None:
        if self.path is None or self._broken:
            return
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))["exercises"]
            self._attempts = {name: _checked(values) for name, values in stored.items()}
        except FileNotFoundError:
            return
        except OSError as error:
            self._keep_in_memory(f"Progress cannot be read from {self.path} ({error.strerror})")
        except (ValueError, TypeError, KeyError, AttributeError):
            self._broken = True  # the next write sets the file aside; until then memory holds
            self._complain(
                f"{self.path} is not a progress file any more: starting anew. "
                f"The old one is kept as {self._aside().name}."
            )

    def _write(self, name: str, attempts: Attempts | None) -> None:
        self._attempts.pop(name, None)
        if attempts is not None:
            self._attempts[name] = attempts
        if self.path is None:
            return
        stored = {"exercises": {key: asdict(value) for key, value in self._attempts.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._broken:
                self.path.replace(self._aside())
                self._broken = False
            replace_whole(self.path, json.dumps(stored, indent=1) + "\n")
        except OSError as error:
            self._keep_in_memory(f"Progress cannot be written to {self.path} ({error.strerror})")

    def _keep_in_memory(self, reason: str) -> None:
        """Give the file up: reading it again would undo what this session knows."""
        self.path = None
        self._complain(f"{reason}; it is kept for this session only.")

    def _aside(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".broken.json")

    def _complain(self, sentence: str) -> None:
        self._to_say.append(sentence)


def _checked(values: Mapping[str, object]) -> Attempts:
    """Attempts from JSON; ValueError on a value of the wrong kind. Unknown keys are a later version's."""
    known = {field.name: values[field.name] for field in fields(Attempts) if field.name in values}
    attempts = Attempts(**known)  # type: ignore[arg-type]
    if not all(type(count) is int and count >= 0 for count in (attempts.tries, attempts.hints)):
        raise ValueError("tries and hints are counts")
    if type(attempts.solved) is not bool:
        raise ValueError("solved is true or false")
    return attempts


def replace_whole(path: Path, text: str) -> None:
    """Write beside, then move: readers see the old file or the new one."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(beside).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise
