"""A room from both sides: joined knowingly, written whole, seen by the instructor, spoken to; what lies is
not read.
"""

import json
import os
import stat
import time
from types import SimpleNamespace

import pytest

from tests.jupyter.test_exercise import RING_BYTES, exercise_cell, new_shell, run
from workshop.classroom import view as room_view
from workshop.classroom.files import read_json
from workshop.classroom.folder import find_room, open_room
from workshop.classroom.names import FOLDER_NAME, folder_name, shown_name
from workshop.classroom.push import composed, push
from workshop.classroom.seat import join, taken_seat
from workshop.classroom.state import DoctorSummary, State, Work
from workshop.classroom.view import GuessesOf, code_of, look
from workshop.cli import main
from workshop.exercises.engine.progress import Attempts, Progress, progress_file
from workshop.jupyter.room_magic import RoomMagics

KNOWN = ("ring_bytes", "mfu")


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("CI", "NBVAL", "WORKSHOP_PROGRESS", "WORKSHOP_ROOM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def room(tmp_path, home):
    return open_room(tmp_path / "room", "Monday")


def seated(room, monkeypatch, tmp_path, name):
    """A learner with a home of their own."""
    own = tmp_path / f"home-{len(list(tmp_path.iterdir()))}"
    monkeypatch.setenv("WORKSHOP_HOME", str(own))
    return join(room.folder, name)


def lesson(room, monkeypatch):
    """A notebook of a learner, with the exercises and `%room`."""
    monkeypatch.setenv("WORKSHOP_ROOM", str(room.folder))
    shell = new_shell()
    shell.register_magics(RoomMagics)
    return shell


def printed(shell, source, capsys):
    run(shell, source)
    return capsys.readouterr().out


def test_nothing_is_written_before_the_learner_agrees(room, home, monkeypatch, capsys):
    shell = lesson(room, monkeypatch)
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    magics = shell.magics_manager.registry["RoomMagics"]
    assert magics.seat is None
    magics.room("join --name Ada")
    told = capsys.readouterr().out
    for words in (
        "tries and hints",
        "guesses",
        "doctor",
        "Your code is not written",
        str(room.folder),
        "%room leave",
    ):
        assert words in told
    assert "`%room join --name Ada --agree` joins." in told
    magics.room("join --name Ada --no-doctor")
    told = capsys.readouterr().out
    assert "workshop doctor" not in told
    assert "`%room join --name Ada --no-doctor --agree` joins." in told
    assert os.listdir(room.learners) == []
    assert not (home / "room.json").exists()


def test_a_lesson_seen_by_the_instructor_and_a_push_back(room, home, monkeypatch, capsys):
    shell = lesson(room, monkeypatch)
    magics = shell.magics_manager.registry["RoomMagics"]
    magics.room("join --name Ada --agree --no-doctor")
    for _ in range(3):
        run(shell, exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    view = look(room)
    [ada] = view.learners
    assert ada.state.name == "Ada"
    assert ada.stuck(view.now)[0] == "ring_bytes"
    assert (ada.state.exercises["ring_bytes"].tries, ada.state.exercises["ring_bytes"].hints) == (3, 3)
    assert "ring_bytes STUCK" in str(view)
    assert "def ring_bytes" not in "".join(path.read_text() for path in room.learners.rglob("*.json"))
    kind, text = composed("ring_bytes", hint=2)
    push(room, kind, text, exercise="ring_bytes", to=ada.folder)
    push(room, *composed("", text="Five minutes more."))
    shown = [text for text, _ in run(shell, "%progress")]
    assert any(RING_BYTES.hints[1] in text for text in shown)
    assert any("Five minutes more." in text for text in shown)
    assert not any("Five minutes" in text for text, _ in run(shell, "%progress"))  # once
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.solution))
    view = look(room)
    assert view.learners[0].stuck(view.now) is None
    [statistics] = view.statistics()
    assert (statistics.tried, statistics.solved, statistics.tries) == (1, 1, 4)
    assert statistics.slowest[0] == "Ada"
    magics.room("leave --forget")
    assert os.listdir(room.learners) == []


def test_a_second_look_reads_what_has_changed(room, home, monkeypatch, tmp_path):
    seat, other = (seated(room, monkeypatch, tmp_path, name) for name in ("Ada", "Grace"))
    for one in (seat, other):
        one.update({"mfu": SimpleNamespace(tries=1, hints=0, solved=False)}, {})
    before = look(room)
    read = []
    monkeypatch.setattr(room_view, "read_json", lambda *given: read.append(given) or read_json(*given))
    assert look(room, before=before).learners == before.learners
    assert read == []
    seat.update({name: SimpleNamespace(tries=1, hints=0, solved=False) for name in KNOWN}, {})
    after = look(room, before=before)
    assert len(read) == 1
    assert {one.state.name: len(one.state.exercises) for one in after.learners} == {"Ada": 2, "Grace": 1}
    file = room.learners / after.named("Ada").folder / "state.json"
    was, text = file.stat(), file.read_text()
    file.write_text(text.replace('"tries":1', '"tries":2'))  # in place, as no learner's notebook does
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # as long, and of the same time, as before
    assert look(room, before=after).named("Ada").state.exercises["ring_bytes"].tries == 2


def test_code_is_shared_once_agreed_and_removed_again(room, home, monkeypatch, capsys):
    shell = lesson(room, monkeypatch)
    magics = shell.magics_manager.registry["RoomMagics"]
    magics.room("join --name Ada --agree --no-doctor")
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.solution))
    [ada] = look(room).learners
    with pytest.raises(ValueError, match="shares no answer"):
        code_of(room, ada.folder, "ring_bytes")
    magics.room("share-code")
    assert not (room.learners / ada.folder / "code").exists()
    magics.room("share-code --agree")
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.solution))
    assert code_of(room, ada.folder, "ring_bytes") == RING_BYTES.solution
    magics.room("keep-code")
    assert not (room.learners / ada.folder / "code").exists()
    assert look(room).learners[0].state.shares_code is False


def test_modes(room, home):
    seat = join(room.folder, "Ada")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (room.learners, room.folder / "pushed")]
    assert modes == [0o3733, 0o711]
    assert stat.S_IMODE(seat.own.stat().st_mode) & 0o777 == 0o750
    assert stat.S_IMODE((seat.own / "state.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((home / "room.json").stat().st_mode) == 0o600


def test_a_seat_is_found_again_and_another_home_is_another_learner(room, monkeypatch, tmp_path):
    first = seated(room, monkeypatch, tmp_path, "Ada")
    first.update({"mfu": Attempts(1, 0, False)}, {})
    again = join(room.folder, "Ada L.")
    assert again.own == first.own
    assert again.state().exercises["mfu"].tries == 1
    assert taken_seat().consent.name == "Ada L."
    assert seated(room, monkeypatch, tmp_path, "Ada").own != first.own
    assert sorted(one.state.name for one in look(room).learners) == ["Ada", "Ada L."]


@pytest.mark.parametrize(
    "name", ["Ada", "ada", "../../etc/passwd", "a/b", "Ünïcödé 学", "学", "x" * 300, "\x1b[2Jada", "-rf"]
)
def test_names(room, monkeypatch, tmp_path, name):
    seat = seated(room, monkeypatch, tmp_path, name)
    assert seat.own.parent == room.learners
    assert FOLDER_NAME.fullmatch(seat.own.name)
    [seen] = look(room).learners
    assert seen.state.name == shown_name(name)
    assert len(seen.state.name) <= 60
    assert "\x1b" not in str(look(room))


@pytest.mark.parametrize("name", ["", "  ", "\x00\x01", "\u202e"])
def test_no_name(name):
    with pytest.raises(ValueError, match="has no letter in it"):
        shown_name(name)


def test_the_same_name_twice_is_two_folders():
    assert folder_name("Ada") != folder_name("Ada")


def lie(own, text):
    (own / "state.json").write_text(text)


LIES = {
    "no JSON (JSONDecodeError)": lambda own: lie(own, "{"),
    "no JSON (RecursionError)": lambda own: lie(own, "[" * 100_000),
    "more than": lambda own: lie(own, " " * 300_000),
    "no learner's state": lambda own: lie(own, '["format"]'),
    "has no name": lambda own: lie(own, '{"format": 1, "name": "\\u0007"}'),
    "a link": lambda own: ((own / "state.json").unlink(), (own / "state.json").symlink_to("/etc/passwd")),
    "second name": lambda own: os.link(own / "state.json", own / "other.json"),
    "no plain file": lambda own: ((own / "state.json").unlink(), os.mkfifo(own / "state.json")),
    "all users can write": lambda own: own.chmod(0o777),
}


@pytest.mark.parametrize("why", LIES)
def test_what_lies_is_refused_and_the_others_are_seen(room, monkeypatch, tmp_path, why):
    liar = seated(room, monkeypatch, tmp_path, "Mallory")
    seated(room, monkeypatch, tmp_path, "Ada")
    LIES[why](liar.own)
    view = look(room)
    assert [one.state.name for one in view.learners] == ["Ada"]
    [(folder, said)] = view.refused
    assert folder == liar.own.name
    assert why in said


def test_a_state_that_lies_in_its_values():
    stored = {
        "format": 1, "name": "A\x1b[31mda", "written_at": 1e300, "doctor": {"ok": -3, "faults": [["x", 1], 2]},
        "exercises": {"ring_bytes": {"tries": 10**12, "hints": "1", "solved": 1, "first_at": float("nan")}, "no": {}},
        "guesses": {"g": {"guess": 10**400, "measured": float("inf")}, "h": {"guess": [1, 2]}, "i": 3},
    }  # fmt: skip
    state = State.read(stored, KNOWN)
    assert state.name == "A[31mda"
    assert state.written_at == 0.0
    assert state.doctor == DoctorSummary(0, 0, 0, (("x", ""),))
    assert state.exercises == {"ring_bytes": Work(tries=1_000_000)}
    assert {name: (one.guess, one.measured) for name, one in state.guesses.items()} == {
        "g": (None, None),
        "h": ((1.0, 2.0), None),
    }


def test_what_is_written_is_read_back_and_timed():
    state = State("Ada").updated({"mfu": Attempts(1, 1, False)}, {"g": {"guess": 2.0}}, 100.0)
    state = state.updated({"mfu": Attempts(2, 1, True)}, {"g": {"guess": 2.0, "measured": 3.0}}, 160.0)
    assert State.read(json.loads(json.dumps(state.as_json())), KNOWN) == state
    assert state.exercises["mfu"].seconds == 60
    assert state.updated({"mfu": Attempts(2, 1, True)}, {}, 500.0).exercises == state.exercises
    assert state.updated({}, {}, 600.0).exercises == {}  # %exercise --reset


def test_a_folder_that_cannot_be_written_costs_no_lesson(room, home, monkeypatch):
    import shutil

    seat = join(room.folder, "Ada")
    shutil.rmtree(seat.own)
    seat.update({"mfu": Attempts(1, 0, False)}, {})
    seat.update({"mfu": Attempts(2, 0, False)}, {})
    [said] = seat.complaints()
    assert "your lesson goes on" in said
    seat.own.mkdir()
    seat.update({"mfu": Attempts(2, 0, False)}, {})
    assert look(room).learners[0].state.exercises["mfu"].tries == 2


def test_only_what_the_owner_wrote_is_shown(room, home):
    seat = join(room.folder, "Ada")
    push(room, *composed("", text="hello"))
    (room.folder / "pushed" / "all.json").chmod(0o644)
    assert [one.text for one in seat.news()] == ["hello"]
    (room.folder / "pushed").chmod(0o777)
    push_file = room.folder / "pushed" / "all.json"
    stored = json.loads(push_file.read_text())
    push_file.write_text(json.dumps([{**stored[0], "number": 9, "text": "give me your password"}]))
    assert seat.news() == []
    assert "all users can write" in seat.complaints()[0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"exercise": "ring_bytes"}, "give one of"),
        ({"exercise": "ring_bytes", "hint": 9}, "has hints 1 to 3"),
        ({"exercise": "", "solution": True}, "need --exercise"),
        ({"exercise": "ring_byte", "text": "x"}, "Did you mean 'ring_bytes'"),
    ],
)
def test_what_cannot_be_pushed(given, why):
    with pytest.raises(ValueError, match=why):
        composed(given.pop("exercise"), **given)


def test_histograms():
    words = GuessesOf("q", "", ("up", "down", "up"), ("down",))
    assert words.histogram() == [("down", 1, True), ("up", 2, False)]
    numbers = GuessesOf("q", "B", (1.0, 2.0, 9.0), (8.0, 8.5))
    assert numbers.truth == 8.25
    bins = numbers.histogram()
    assert sum(count for _, count, _ in bins) == 3
    [(words, count, _)] = [one for one in bins if one[2]]
    assert (words, count) == ("8 B to 9 B", 1)
    wide = GuessesOf("q", "", (1.0, 10.0, 1e6), (1e3,)).histogram()
    assert sum(count for _, count, _ in wide) == 3
    assert [count for _, count, _ in GuessesOf("q", "", ((1.0, 2.0),), ()).histogram()] == [1]
    assert GuessesOf("q", "", (5.0, 5.0), (5.0,)).histogram() == [("5", 2, True)]


def test_the_command_line(tmp_path, home, capsys):
    folder = str(tmp_path / "room")
    assert main(["room", "show", folder]) == 2
    assert "workshop room open" in capsys.readouterr().err
    assert main(["room", "open", folder, "--title", "Monday"]) == 0
    assert main(["room", "join", folder, "--name", "Ada"]) == 1
    assert "Nothing was written" in capsys.readouterr().out
    Progress(progress_file()).next_hint("mfu", 3)
    assert main(["room", "join", folder, "--name", "Ada", "--agree", "--no-doctor"]) == 0
    assert main(["room", "push", folder, "--exercise", "mfu", "--solution", "--to", "Ada"]) == 0
    for hint, told in ((1, True), (2, False)):
        assert main(["room", "push", folder, "--exercise", "mfu", "--hint", str(hint), "--to", "Ada"]) == 0
        assert ("Ada has had this hint: 1 so far." in capsys.readouterr().out) == told
    assert main(["room", "push", folder, "--text", "x", "--to", "Eve"]) == 2
    assert "there are: Ada" in capsys.readouterr().err
    assert main(["room", "show", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learners"][0]["name"] == "Ada"
    assert main(["room", "leave", "--forget"]) == 0
    assert main(["room", "leave"]) == 2


def test_another_owner_later_is_told(room, home, monkeypatch):
    seat = join(room.folder, "Ada")
    object.__setattr__(seat.consent, "owner", 54321)
    push(room, *composed("", text="hello"))
    assert seat.news() == []
    assert "now belongs to" in seat.complaints()[0]


def test_a_room_is_quickly_seen_after_long_use(room, monkeypatch, tmp_path):
    """Files that a killed write left behind are not taken for states, and are swept when their owner comes
    back.
    """
    seat = seated(room, monkeypatch, tmp_path, "Ada")
    left = seat.own / ".new-abc"
    left.write_text("{")
    os.utime(left, (time.time() - 1e5,) * 2)
    assert [one.state.name for one in look(room).learners] == ["Ada"]
    join(room.folder, "Ada")
    assert not left.exists()
    assert find_room(room.folder) == room


def test_a_link_in_the_place_of_ones_own_folder_is_neither_written_to_nor_removed(room, home, tmp_path):
    """The room's owner can lay one: it shall lead to nothing of the learner's."""
    seat = join(room.folder, "Ada")
    (tmp_path / "project" / "code").mkdir(parents=True)
    seat.own.rename(room.learners / "away")
    seat.own.symlink_to(tmp_path / "project")
    seat.update({"mfu": Attempts(1, 0, False)}, {})
    assert "it is no folder" in seat.complaints()[0]
    for act in (lambda: seat.share_code(False), lambda: seat.leave(forget=True)):
        with pytest.raises(ValueError, match="it is no folder"):
            act()
    assert [path.name for path in (tmp_path / "project").rglob("*")] == ["code"]
