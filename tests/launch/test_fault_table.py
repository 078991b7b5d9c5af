"""The failure lab's table: made in parts, and whole as it lies in data/measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.faults import __main__ as lab
from benchmarks.faults.lab import Outcome
from benchmarks.faults.table import Table

MEASURED = Path(__file__).parents[2] / "data" / "measurements" / "faults.json"
KEYS = {("one", "ranks"): "well", ("two", "torchrun"): "well", ("three", "torchrun"): "hung: no answer"}

ENGINE_OF = dict(KEYS.keys())


class FakeLab:
    """No ranks, and nothing left."""

    def close(self) -> list[str]:
        return []


@pytest.fixture
def fake_lab(monkeypatch):
    ran: list[tuple[str, str]] = []

    def once(key, word):
        def run(_lab):
            ran.append(key)
            return Outcome(*key, seconds=0.5, said=word, problems=[word] if word != "well" else [])

        return run

    monkeypatch.setattr(lab, "Lab", FakeLab)
    monkeypatch.setattr(lab, "cells", lambda: {key: once(key, word) for key, word in KEYS.items()})
    monkeypatch.setattr(lab, "ends", dict)
    monkeypatch.setattr(lab, "shared_memory", set)  # other tests have theirs there
    return ran


def test_a_semaphore_that_stays_is_told(fake_lab, monkeypatch, tmp_path, capsys):
    looks = iter([{"old"}])
    monkeypatch.setattr(lab, "shared_memory", lambda: next(looks, {"old", "sem.mp-left"}))
    monkeypatch.setattr(lab, "ERROR_WITHIN", 0.0)
    file = tmp_path / "faults.json"
    assert run(monkeypatch, "--times", 1, "--json", file, "--only", "one") == 1
    told = "1 files in /dev/shm left: ['sem.mp-left']"
    assert told in capsys.readouterr().out
    assert json.loads(file.read_text())["parts"][-1]["left_at_the_end"] == [told]


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["faults", *map(str, words)])
    return lab.main()


def test_a_table_is_made_in_parts_and_nothing_is_run_twice(fake_lab, monkeypatch, tmp_path, capsys):
    file = tmp_path / "faults.json"
    assert run(monkeypatch, "--times", 2, "--json", file, "--go-on", "--minutes", 0) == 3
    assert "6 runs are left to do" in capsys.readouterr().out
    assert run(monkeypatch, "--times", 2, "--json", file, "--go-on", "--only", "one") == 0
    assert run(monkeypatch, "--times", 2, "--json", file, "--go-on") == 1  # "three" hangs
    assert fake_lab == [key for key in KEYS for _ in range(2)]
    assert "3 faults, 6 runs" in (shown := capsys.readouterr().out)
    assert "2 hung" in shown
    written = json.loads(file.read_text())
    assert [part["runs"] for part in written["parts"]] == [0, 2, 4]
    assert [row["fault"] for row in written["faults"]] == ["one", "two", "three"]
    assert written["faults"][2]["problems"] == [["hung: no answer"]] * 2


def test_without_go_on_a_table_begins_anew(fake_lab, monkeypatch, tmp_path):
    file = tmp_path / "faults.json"
    for _ in range(2):
        run(monkeypatch, "--times", 1, "--json", file)
    assert len(fake_lab) == 6
    assert len(json.loads(file.read_text())["parts"]) == 1


def test_going_on_needs_a_file_and_a_name_that_is_there(fake_lab, monkeypatch, capsys):
    for words, why in ((("--go-on",), "--go-on needs --json FILE"), (("--only", "ten"), "contains 'ten'")):
        with pytest.raises(SystemExit):
            run(monkeypatch, *words)
        assert why in capsys.readouterr().err


def test_what_a_session_leaves_is_kept_over_the_parts(tmp_path):
    file = tmp_path / "faults.json"
    Table(file, [file], command="first").close(["1 files left: ['x']"])
    assert Table(file, [file], command="second").left() == ["1 files left: ['x']"]


def test_two_tables_are_made_from_both_ends_and_joined(fake_lab, monkeypatch, tmp_path):
    first, second, both = (tmp_path / name for name in ("first.json", "second.json", "both.json"))
    run(monkeypatch, "--times", 2, "--json", first, "--only", "o")
    run(monkeypatch, "--times", 2, "--json", second, "--only", "e", "--from-the-end")
    assert fake_lab == [
        (name, ENGINE_OF[name]) for name in ("one", "one", "two", "two", "three", "three", "one", "one")
    ]
    assert run(monkeypatch, "--times", 2, "--json", both, "--join", first, second) == 1
    assert len(fake_lab) == 8
    written = json.loads(both.read_text())
    assert {row["fault"]: len(row["left"]) for row in written["faults"]} == {"one": 4, "two": 2, "three": 2}
    assert [part["runs"] for part in written["parts"]] == [4, 4, 0]


def test_the_measured_table_has_every_fault_five_times_on_each_engine_and_none_hung_or_left_anything():
    measured = json.loads(MEASURED.read_text())
    rows = {(row["fault"], row["engine"]): row for row in measured["faults"]}
    assert sorted(rows) == sorted(lab.everything()), "make it anew: python -m benchmarks.faults --help"
    for key, row in rows.items():
        assert len(row["problems"]) == len(row["left"]) == len(row["seconds"]) >= 5, key
        assert sum(row["left"]) == 0, key
        late = [problem for problems in row["problems"] for problem in problems]
        assert all("s from the failure to the error" in problem for problem in late), key  # and nothing worse
    problems = [problems for row in rows.values() for problems in row["problems"] if problems]
    assert len(problems) <= 1
    assert "left_at_the_end" in measured["parts"][-1]  # one that was cut off has none
    for part in measured["parts"]:
        assert part.get("left_at_the_end", []) == []
        assert part["commit"].isalnum(), "of a tree with changes that are in no commit"
    assert measured["machine"]["versions"]["torch"]
