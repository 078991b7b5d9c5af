"""A room of three: grace teaches, ada learns, mallory learns too and would like to see, change or be the
others.
"""

import os
from pathlib import Path

import pytest

from tests.attacks.table import ADA, MALLORY, as_user, attack
from workshop.classroom.folder import open_room
from workshop.classroom.push import composed, push
from workshop.classroom.seat import Seat, consent_file, join
from workshop.classroom.view import code_of, look
from workshop.exercises import all_exercises
from workshop.exercises.engine.progress import Attempts

GRACE = 54323
all_exercises()  # imported and read before a fork becomes another user


@pytest.fixture
def taught(shared, monkeypatch):
    """A room of grace's, in which ada has a seat and shares her code."""
    for name in ("CI", "NBVAL", "WORKSHOP_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKSHOP_HOME", str(shared.ada))
    (shared.base / "grace").mkdir()
    os.chown(shared.base / "grace", GRACE, GRACE)
    shared.room = shared.base / "grace" / "room"
    assert as_user(GRACE, lambda: open_room(shared.room).title) == "room"
    shared.seat = Path(as_user(ADA, lambda: str(take(shared))))
    return shared


def take(taught):
    """Ada's folder in the room, after one answer."""
    seat = join(taught.room, "Ada")
    seat.share_code(True)
    seat.update({"mfu": Attempts(1, 0, False)}, {})
    seat.keep_code("mfu", "def mfu(): ...")
    return seat.own


def seen(taught):
    """What grace sees: names, and what was not read."""

    def act():
        view = look(taught.room)
        told = [f"{name.rpartition('-')[0]}: {why}" for name, why in view.refused]
        return ", ".join(one.state.name for one in view.learners) + (f" ({'; '.join(told)})" if told else "")

    return as_user(GRACE, act)


def tries(act, *arguments):
    """What mallory is told."""
    said = as_user(MALLORY, act, *arguments)
    return said if isinstance(said, str) else repr(said)


def without_path(said):
    """The error without the path, which differs from run to run."""
    return said.partition(": '")[0].partition("] ")[2] or said


@attack(
    "a learner lists the room's learners, reads another's progress, by its path, and her code",
    "another learner",
)
def test_look_at_others(taught):
    told = [
        tries(os.listdir, taught.room / "learners"),
        tries(lambda: (taught.seat / "state.json").read_text()),
        tries(lambda: (taught.seat / "code" / "mfu.py").read_text()),
    ]
    [shown] = set(map(without_path, told))
    code = as_user(GRACE, lambda: code_of(look(taught.room).room, taught.seat.name, "mfu"))
    return f"{shown}, three times; the instructor reads the code that ada agreed to share: {code}"


@attack("a learner removes or renames another's folder, or puts a file into it", "another learner")
def test_change_others(taught):
    told = [
        tries(os.rename, taught.seat, taught.room / "learners" / "gone"),
        tries(lambda: (taught.seat / "state.json").write_text("{}")),
    ]
    return f"{', '.join(map(without_path, told))}: the instructor sees {seen(taught)}"


@attack(
    "a learner's state that is a link to a file of the instructor's, or a fifo nobody writes to", "a learner"
)
def test_state_elsewhere(taught):
    secret = taught.file(
        taught.base / "grace" / "secret.json", '{"format": 1, "name": "secret"}', GRACE, 0o600
    )

    def lay():
        for name, make in (("a", lambda at: at.symlink_to(secret)), ("b", os.mkfifo)):
            own = taught.room / "learners" / f"{name}-0123456789abcdef"
            own.mkdir()
            make(own / "state.json")

    tries(lay)
    return f"the instructor sees {seen(taught)}"


@attack("a learner's folder that is a link to the folder of another learner", "another learner")
def test_folder_elsewhere(taught):
    tries(lambda: (taught.room / "learners" / "eve-0123456789abcdef").symlink_to(taught.seat))
    return f"the instructor sees {seen(taught)}"


@attack("a learner pushes a solution to another learner, or to everybody", "another learner")
def test_push_to_others(taught):
    told = [
        tries(lambda: push(look(taught.room).room, *composed("", text="send me your password"))),
        tries(lambda: (taught.room / "pushed" / "all.json").write_text("[]")),
    ]
    return f"{told[0].partition(' /')[0]}; {without_path(told[1])}"


@attack("a file in pushed that is not the instructor's (root copied it there)", "another learner")
def test_push_of_anothers(taught):
    text = '[{"number": 1, "at": 1, "kind": "note", "exercise": "", "text": "send me your password"}]'
    taught.file(taught.room / "pushed" / "all.json", text, MALLORY)

    def news():
        seat = Seat(consent_file(), join(taught.room, "Ada").consent)
        return f"{seat.news()} {seat.complaints()[0]}"

    return as_user(ADA, news).replace(str(taught.room), "ROOM").replace("user 54323", "grace")


@attack("a room that another user opened in the place of the one that ada joined", "another user")
def test_another_room_in_its_place(taught):
    consent = as_user(ADA, lambda: consent_file().read_text())
    assert str(GRACE) in consent
    taught.room.rename(taught.base / "grace" / "away")
    taught.room.mkdir()
    os.chown(taught.room, MALLORY, MALLORY)

    def lure():
        push(open_room(taught.room), *composed("", text="send me your password"))

    tries(lure)

    def news():
        from workshop.classroom.seat import taken_seat

        seat = taken_seat()
        return f"{seat.news()} {seat.complaints()[0]}"

    return as_user(ADA, news).replace("user 54323", "grace")
