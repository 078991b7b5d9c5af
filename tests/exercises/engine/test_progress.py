"""Progress in a small file: kept whole, shared between notebooks, and never in the way."""

import json
from pathlib import Path

import pytest

from workshop.exercises.engine.progress import Attempts, Progress, progress_file


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"WORKSHOP_HOME": "w"}, "w/progress.json"),
        ({"XDG_DATA_HOME": "data"}, "data/workshop/progress.json"),
        ({"XDG_DATA_HOME": ""}, str(Path("~/.local/share/workshop/progress.json").expanduser())),
        ({"WORKSHOP_HOME": "w", "CI": "false"}, "w/progress.json"),
        ({"WORKSHOP_HOME": "w", "CI": "true"}, None),
        ({"WORKSHOP_HOME": "w", "CI": "1"}, None),
        ({"WORKSHOP_HOME": "w", "NBVAL": "1"}, None),
        ({"WORKSHOP_HOME": "w", "WORKSHOP_PROGRESS": "off"}, None),
        ({"WORKSHOP_HOME": "w", "WORKSHOP_PROGRESS": "on"}, "w/progress.json"),
    ],
)  # fmt: skip
def test_where_it_is_kept(environ, path):
    assert progress_file(environ) == (None if path is None else Path(path))


def test_a_session_later_it_is_remembered(tmp_path):
    path = tmp_path / "deep" / "progress.json"
    progress = Progress(path)
    assert progress["ring_bytes"].state == "not begun"
    progress.tried("ring_bytes", solved=False)
    assert progress.next_hint("ring_bytes", 3) == 0
    assert Progress(path)["ring_bytes"] == Attempts(tries=1, hints=1)
    assert Progress(path)["ring_bytes"].state == "tried"
    progress.tried("ring_bytes", solved=True)
    assert Progress(path)["ring_bytes"] == Attempts(tries=2, hints=1, solved=True)
    assert sorted(file.name for file in path.parent.iterdir()) == ["progress.json"]
    assert progress.complaints() == []


def test_what_was_solved_stays_solved(tmp_path):
    progress = Progress(tmp_path / "p.json")
    progress.tried("a", solved=True)
    progress.tried("a", solved=False)
    assert progress["a"].state == "solved"


def test_hints_come_one_by_one_and_the_last_one_stays():
    progress = Progress(None)
    assert [progress.next_hint("a", 3) for _ in range(5)] == [0, 1, 2, 2, 2]
    assert progress["a"].hints == 3


def test_reset_forgets_one(tmp_path):
    progress = Progress(tmp_path / "p.json")
    for name in "ab":
        progress.tried(name, solved=True)
    progress.reset("a")
    again = Progress(tmp_path / "p.json")
    assert (again["a"], again["b"].solved) == (Attempts(), True)


def test_two_notebooks_do_not_undo_each_other(tmp_path):
    first, second = Progress(tmp_path / "p.json"), Progress(tmp_path / "p.json")
    first.tried("a", solved=True)
    second.tried("b", solved=False)
    first.tried("c", solved=False)
    assert {name: Progress(tmp_path / "p.json")[name].tries for name in "abc"} == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"exercises": []}',
        '{"exercises": {"a": 3}}',
        '{"exercises": {"a": {"tries": -1}}}',
        '{"exercises": {"a": {"tries": "many"}}}',
        '{"exercises": {"a": {"solved": 1}}}',
        "\udcff",
    ],
)
def test_a_broken_file_is_set_aside_and_said_once(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    progress = Progress(path)
    [complaint] = progress.complaints()
    assert (
        "is not a progress file any more: starting anew. The old one is kept as p.broken.json." in complaint
    )
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")  # looking alone changes nothing
    progress.tried("a", solved=True)
    assert [progress.next_hint("a", 3) for _ in range(2)] == [0, 1]
    assert progress.complaints() == []
    assert Progress(path)["a"] == Attempts(tries=1, hints=2, solved=True)
    assert (tmp_path / "p.broken.json").read_bytes() == text.encode("utf-8", "surrogateescape")


def test_what_a_later_version_adds_is_no_error(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"exercises": {"a": {"tries": 2, "stars": 5}}, "version": 9}))
    progress = Progress(path)
    assert progress["a"].tries == 2
    assert progress.complaints() == []


def test_where_nothing_can_be_written_the_session_remembers(tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    progress = Progress(tmp_path / "file" / "progress.json")
    progress.tried("a", solved=False)
    assert [progress.next_hint("a", 3) for _ in range(2)] == [0, 1]
    assert progress["a"].tries == 1
    [complaint] = progress.complaints()
    assert "progress.json (Not a directory); it is kept for this session only." in complaint
    assert progress.complaints() == []


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "p.json"
    progress = Progress(path)
    progress.tried("a", solved=True)
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workshop.exercises.engine.progress.replace_whole", full)
    progress.tried("b", solved=True)
    assert path.read_text() == before
    assert progress["b"].solved
    assert "(No space left on device)" in progress.complaints()[0]


def test_a_failed_move_leaves_nothing_beside(tmp_path):
    path = tmp_path / "p.json"
    path.mkdir()  # a folder in the file's place: reading fails, and so would a move
    from workshop.exercises.engine.progress import replace_whole

    with pytest.raises(OSError, match="directory"):
        replace_whole(path, "{}")
    assert list(tmp_path.iterdir()) == [path]
