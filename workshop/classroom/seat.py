"""A learner's seat in a room: joining it knowingly, and writing down how far they are, whenever that changes.

Joined is who said so: ``%room join`` tells what will be shared, and with whom; ``%room join --agree`` does
it. That is remembered beside the progress (``room.json``), for the notebooks to come, until ``%room leave``.
Where no progress is kept (``CI``, ``NBVAL``, ``WORKSHOP_PROGRESS=off``) there is no seat either.

A folder that cannot be written costs the instructor a line, never the learner a lesson: it is said once, and
tried again with the next change.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workshop.classroom.files import opened_folder, read_json, sweep, write_json, write_text
from workshop.classroom.folder import (
    CODE,
    FOR_READERS,
    LEARNERS,
    ROOM,
    STATE,
    Room,
    find_room,
    made_for_readers,
)
from workshop.classroom.names import check_folder_name, folder_name, shown_name
from workshop.classroom.push import Push, pushed_to
from workshop.classroom.state import DoctorSummary, State
from workshop.exercises import all_exercises
from workshop.exercises.engine.progress import progress_file
from workshop.site.owners import check_folder_itself, user_name

MOST_CODE_LETTERS = 64_000
_PATIENCE_SECONDS = 0.3  # for another notebook of the same learner that writes at this moment


@dataclass(frozen=True)
class Consent:
    """What the learner agreed to: which room, whose, under which name, with or without code."""

    folder: str
    owner: int
    learner: str
    name: str
    share_code: bool = False
    seen: Mapping[str, int] = field(default_factory=dict)  # number of the last push that was shown, by file


def consent_file() -> Path | None:
    """Where the consent is kept; None where progress is not kept either."""
    progress = progress_file()
    return progress and progress.with_name("room.json")


def words_before_joining(room: Room, name: str, doctor: bool = True) -> str:
    """What is shared with whom: said before anything is written. doctor: whether the machine is looked at."""
    shared = [
        f"the name {name!r} (another: --name NAME)",
        "what `workshop doctor` says of this machine: counts, and each `no` with its reason",
        "each exercise: how many tries and hints, whether it is solved, and when",
        "your guesses, and what was then measured",
    ]
    if not doctor:
        del shared[1]
    lines = "".join(f"  - {each}\n" for each in shared)
    return (
        f"The room {room.title!r} in {room.folder} belongs to {user_name(room.owner)}. If you join it, this "
        f"is written there, into a folder of your own, whenever it changes:\n{lines}"
        "Your code is not written (only after `%room share-code --agree`). "
        f"It can be read by: you, {room.readers}. Nothing goes anywhere else.\n"
        "`%room leave` ends it; `%room leave --forget` removes what was written, too."
    )


def words_before_sharing_code(room: Room) -> str:
    """The same for code."""
    return (
        f"From then on each answer that you check is written into your folder in {room.folder}, as you "
        f"typed it, "
        f"and replaces the one before. It can be read by: you, {room.readers}; no other learner. "
        "`%room keep-code` ends it and removes what was written."
    )


def join(folder: Path | str | None, name: str) -> Seat:
    """Take a seat, or come back to the one that this home has in that room.

    Raises:
        ValueError: no progress is kept here, there is no such room, or the name is none.
    """
    kept = consent_file()
    if kept is None:
        raise ValueError(
            "no progress is kept here (CI, NBVAL or WORKSHOP_PROGRESS=off), so none can be shared"
        )
    room, name = find_room(folder), shown_name(name)
    before = _consent(kept)
    same = (
        before is not None and before.folder == str(room.folder) and (room.learners / before.learner).is_dir()
    )
    if same and before is not None:
        consent = replace(before, name=name, owner=room.owner)
    else:
        consent = Consent(str(room.folder), room.owner, folder_name(name), name)
    own = room.learners / consent.learner
    try:
        with made_for_readers():
            own.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"no folder can be made in {room.learners} ({error.strerror})") from None
    sweep(own)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_json(kept, asdict(consent), 0o600)
    seat = Seat(kept, consent)
    seat.rename(name)
    return seat


def taken_seat() -> Seat | None:
    """The seat that was taken from this home, or None."""
    kept = consent_file()
    consent = _consent(kept) if kept else None
    return Seat(kept, consent) if kept and consent else None


class Seat:
    """One learner's place in one room; each notebook of theirs has an object of it."""

    def __init__(self, kept: Path, consent: Consent):
        self.kept = kept
        self.consent = consent
        self.own = Path(consent.folder) / LEARNERS / consent.learner
        self._written: tuple[Any, Any] | None = None
        self._to_say: list[str] = []
        self._said: set[str] = set()

    def __str__(self) -> str:
        code = "with your code" if self.consent.share_code else "without your code"
        return f"You are in the room {self.consent.folder} as {self.consent.name!r}, {code}."

    def update(
        self, attempts: Mapping[str, Any], guesses: Mapping[str, Any], doctor: DoctorSummary | None = None
    ) -> None:
        """Write how far the learner is, if that has changed since it was last written."""
        now = (dict(attempts), json.dumps(guesses, sort_keys=True, default=str))
        if now == self._written and doctor is None:
            return
        with self._alone():
            at = time.time()
            state = self.state().updated(attempts, guesses, at)
            if doctor is not None:
                state = replace(state, doctor=doctor)
            if self._write(replace(state, written_at=at)):
                self._written = now

    def rename(self, name: str) -> None:
        """Write the state under this name."""
        with self._alone():
            self._write(replace(self.state(), name=name, written_at=time.time()))

    def state(self) -> State:
        """What this learner has written; a new one where there is none that can be read."""
        try:
            with opened_folder(self.own, os.geteuid()) as inside:
                stored = read_json(inside, STATE, os.geteuid())
            known = [exercise.name for exercise in all_exercises()]
            return replace(State.read(stored, known), name=self.consent.name)
        except (OSError, ValueError):  # none yet, or damaged: what counts is in the progress
            return State(self.consent.name)

    def keep_code(self, exercise: str, source: str) -> None:
        """Write an answer as it was typed, if the learner agreed to that."""
        if not self.consent.share_code:
            return
        with self._complaining():
            self._check()
            with made_for_readers():
                (self.own / CODE).mkdir(exist_ok=True)
            write_text(self.own / CODE / f"{exercise}.py", source[:MOST_CODE_LETTERS], FOR_READERS)

    def share_code(self, agreed: bool) -> None:
        """Begin to share answers, or end it and remove what was shared; OSError where that cannot be."""
        self._agree(replace(self.consent, share_code=agreed))
        if not agreed:
            with contextlib.suppress(FileNotFoundError):
                self._check()
                shutil.rmtree(self.own / CODE)
        with self._alone():
            self._write(replace(self.state(), shares_code=agreed))

    def leave(self, *, forget: bool = False) -> None:
        """Share nothing any more; ``forget`` removes what was shared. OSError where that cannot be."""
        self.kept.unlink(missing_ok=True)
        if forget:
            with contextlib.suppress(FileNotFoundError):
                self._check()
                shutil.rmtree(self.own)

    def news(self) -> list[Push]:
        """What the instructor has said since this was last asked for."""
        new: list[Push] = []
        with self._complaining():
            room = find_room(self.consent.folder)
            if room.owner != self.consent.owner:
                self._say(
                    f"the room {room.folder} now belongs to {user_name(room.owner)}, not to "
                    f"{user_name(self.consent.owner)}: what it says is not shown. `%room leave` leaves it"
                )
                return []
            seen = dict(self.consent.seen)
            for name, pushes in pushed_to(room, self.consent.learner).items():
                new += [one for one in pushes if one.number > seen.get(name, 0)]
                seen[name] = max((one.number for one in pushes), default=seen.get(name, 0))
            if new:
                self._agree(replace(self.consent, seen=seen))
        return sorted(new, key=lambda one: one.at)

    def complaints(self) -> list[str]:
        """What to tell about the room; each sentence is given once."""
        complaints, self._to_say = self._to_say, []
        return complaints

    def _agree(self, consent: Consent) -> None:
        self.consent = consent
        write_json(self.kept, asdict(consent), 0o600)

    def _check(self) -> None:
        """Raise ValueError where a link, or another's folder, stands in the place of one's own."""
        check_folder_itself(self.own, "the folder")

    def _write(self, state: State) -> bool:
        with self._complaining():
            self._check()
            state = replace(state, shares_code=self.consent.share_code)
            write_json(self.own / STATE, state.as_json(), FOR_READERS)
            return True
        return False

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._to_say.append(sentence)

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        """What the room's folder refuses is said once; the lesson goes on."""
        try:
            yield
        except OSError as error:
            self._say(
                f"The room {self.consent.folder} cannot be reached ({error.strerror}): your lesson goes "
                f"on, your "
                f"instructor does not see it. `%room leave` leaves it; `%room join` comes back."
            )
        except ValueError as error:
            self._say(f"The room {self.consent.folder}: {error}.")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One notebook of this learner at a time, as far as this home's file system can tell them apart."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):
                lock = held.enter_context(self.kept.with_suffix(".lock").open("w"))
                until = time.monotonic() + _PATIENCE_SECONDS
                while time.monotonic() < until:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(0.01)
            yield


def _consent(kept: Path) -> Consent | None:
    """The consent in this learner's own home; None where there is none that can be read."""
    try:
        with opened_folder(kept.parent, os.geteuid()) as inside:
            stored = read_json(inside, kept.name, os.geteuid())
        consent = Consent(**stored)
        check_folder_name(consent.learner)
        return consent
    except (OSError, ValueError, TypeError):
        return None


def named_room() -> str:
    """The room that ``WORKSHOP_ROOM`` names, or ""."""
    return os.environ.get(ROOM, "")


def doctor_summary() -> DoctorSummary:
    """What the doctor says of this machine."""
    from workshop.doctor import diagnose

    print("Looking at this machine, as `workshop doctor` does ...", flush=True)
    return DoctorSummary.of(diagnose())


def user() -> str:
    """What this user is called: on a hub by the hub's name, else by the system's."""
    try:
        return os.environ.get("JUPYTERHUB_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's odd user number
        return "learner"
