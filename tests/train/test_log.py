"""What every log promises; `test_trackers` reads back what TensorBoard, W&B and Aim keep."""

import importlib.util
import json
import sys

import pytest

from workshop.train.log import open_log


def fill(name, folder):
    log = open_log(name, folder)
    log.write(1, loss=3.5, learning_rate=0.1)
    log.write(2, loss=2.5, learning_rate=0.2)
    log.close()


def test_json_lines_and_a_restarted_run_goes_on_below(tmp_path):
    fill("jsonl", tmp_path / "new")
    fill("jsonl", tmp_path / "new")
    lines = [json.loads(line) for line in (tmp_path / "new" / "log.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"], line["learning_rate"]) for line in lines] == [
        (1, 3.5, 0.1),
        (2, 2.5, 0.2),
    ] * 2


def test_a_line_is_there_when_write_returns(tmp_path):
    log = open_log("jsonl", tmp_path)
    log.write(1, loss=1.0)
    assert json.loads((tmp_path / "log.jsonl").read_text())["loss"] == 1.0
    log.close()


def test_none_leaves_nothing(tmp_path):
    fill("none", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_unknown_name_lists_the_known():
    with pytest.raises(
        ValueError, match=r"unknown log 'tensorbord'; did you mean 'tensorboard'\?.*'jsonl'.*'wandb'.*'none'"
    ):
        open_log("tensorbord", ".")


@pytest.mark.parametrize("name", ["wandb", "aim"])
def test_a_missing_library_is_named(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}, or choose jsonl"):
        open_log(name, tmp_path)


def test_none_of_the_libraries_is_imported_before_it_is_asked_for():
    assert importlib.util.find_spec("workshop.train.log")
    source = importlib.util.find_spec("workshop.train.log").loader.get_source("workshop.train.log")
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not [
        line for line in top if any(name in line for name in ("tensorboard", "wandb", "aim", "torch"))
    ]
