"""`workshop assets`: what it prints and which exit code it ends with."""

import json
import subprocess
import sys

import pytest

from workshop.assets import store
from workshop.cli import main


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path))
    monkeypatch.setenv("WORKSHOP_OFFLINE", "1")
    return tmp_path


def test_list(cache, capsys):
    assert main(["assets", "list"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"in {cache}\n")
    assert "not here    smollm2" in said
    assert "licence: Expat (MIT)" in said


def test_list_as_json(cache, capsys):
    assert main(["assets", "list", "sotu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["assets"]
    assert (row["name"], row["state"], row["download_bytes"]) == ("sotu", "not here", 7_217_658)


def test_fetch_that_fails_goes_on_and_ends_with_1(cache, capsys):
    assert main(["assets", "fetch", "sotu", "questions"]) == 1
    said = capsys.readouterr()
    assert "sotu is not in" in said.err
    assert "questions is not in" in said.err


def test_fetch_what(cache, capsys):
    assert main(["assets", "fetch"]) == 2
    assert "fetch what? --all (" in capsys.readouterr().err
    assert main(["assets", "fetch", "sotu", "--all"]) == 2
    assert main(["assets", "fetch", "sotuu"]) == 2
    assert "did you mean 'sotu'" in capsys.readouterr().err


def test_verify_what_is_not_there(cache, capsys):
    assert main(["assets", "verify", "sotu"]) == 1
    assert "sotu: not in the cache" in capsys.readouterr().err


def test_verify_finds_a_change(cache, capsys, monkeypatch):
    there = store.place(store.asset("sotu"))
    with store.cache.filling(there) as work:
        (work / "1790.txt").write_text("Fellow citizens")
    assert main(["assets", "verify", "sotu"]) == 0
    assert main(["assets", "fetch", "sotu"]) == 0
    (there / "1790.txt").write_text("Fellow citizenS")
    capsys.readouterr()
    assert main(["assets", "verify", "sotu"]) == 1
    assert "1790.txt has changed" in capsys.readouterr().err


def test_the_command_loads_no_torch(cache):
    code = (
        "import sys\nfrom workshop.cli import main\nmain(['assets', 'list'])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
