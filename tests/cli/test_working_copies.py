import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workshop.cli.working_copies import RECORD_NAME, is_untouched, lay_working_copies

NAME = "day1_x/11_y.ipynb"


def publish(lessons, source="x = 1"):
    cell = new_code_cell(source, execution_count=1, outputs=[new_output("stream", text="hello\n")])
    cell.metadata["execution"] = {"iopub.execute_input": "now"}
    path = lessons / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Y"), cell]), path)
    return path


@pytest.fixture
def lessons(tmp_path):
    folder = tmp_path / "notebooks"
    publish(folder)
    (folder / "source" / "day1_x").mkdir(parents=True)
    (folder / "source" / "day1_x" / "11_y.py").write_text("# %%\n")
    (folder / "day1_x" / "ring.svg").write_text("<svg/>")
    (folder / "day1_x" / ".ipynb_checkpoints").mkdir()
    (folder / "day1_x" / ".ipynb_checkpoints" / "11_y-checkpoint.ipynb").write_text("{}")
    return folder


@pytest.fixture
def lab(tmp_path):
    return tmp_path / "lab"


def lay(lessons, lab):
    return {entry.path.relative_to(lab).as_posix(): entry.what for entry in lay_working_copies(lessons, lab)}


def write_in(path, source="x = 'mine'"):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source = source
    nbformat.write(notebook, path)


def source_of(path):
    return nbformat.read(path, as_version=4).cells[1].source


def test_the_first_time(lessons, lab):
    assert lay(lessons, lab) == {NAME: "new", "day1_x/ring.svg": "new"}
    cell = nbformat.read(lab / NAME, as_version=4).cells[1]
    assert (cell.source, cell.outputs, cell.execution_count, cell.metadata) == ("x = 1", [], None, {})
    assert sorted(p.name for p in lab.rglob("*") if p.is_file()) == [RECORD_NAME, "11_y.ipynb", "ring.svg"]


def test_the_second_time_nothing_changes(lessons, lab):
    lay(lessons, lab)
    before = (lab / NAME).stat().st_mtime_ns
    assert set(lay(lessons, lab).values()) == {"kept"}
    assert (lab / NAME).stat().st_mtime_ns == before


def test_an_untouched_copy_follows_the_lesson(lessons, lab):
    lay(lessons, lab)
    publish(lessons, "x = 2")
    assert lay(lessons, lab)[NAME] == "refreshed"
    assert source_of(lab / NAME) == "x = 2"


def test_a_copy_that_was_only_run_is_untouched(lessons, lab):
    lay(lessons, lab)
    notebook = nbformat.read(lab / NAME, as_version=4)
    notebook.cells[1].outputs = [new_output("stream", text="hello\n")]
    notebook.cells[1].execution_count = 7
    nbformat.write(notebook, lab / NAME)
    assert is_untouched(lab, NAME)
    publish(lessons, "x = 2")
    assert lay(lessons, lab)[NAME] == "refreshed"


def test_what_the_learner_wrote_stays_and_the_new_version_lies_beside(lessons, lab):
    lay(lessons, lab)
    write_in(lab / NAME)
    assert not is_untouched(lab, NAME)
    assert lay(lessons, lab)[NAME] == "kept"  # the lesson has not changed: nothing to offer
    publish(lessons, "x = 2")
    assert lay(lessons, lab)["day1_x/11_y.new.ipynb"] == "beside"
    assert source_of(lab / NAME) == "x = 'mine'"
    assert source_of(lab / "day1_x/11_y.new.ipynb") == "x = 2"


def test_the_same_version_is_offered_once(lessons, lab):
    lay(lessons, lab)
    write_in(lab / NAME)
    publish(lessons, "x = 2")
    lay(lessons, lab)
    (lab / "day1_x/11_y.new.ipynb").unlink()
    assert lay(lessons, lab)[NAME] == "kept"
    assert not (lab / "day1_x/11_y.new.ipynb").exists()
    publish(lessons, "x = 3")
    assert lay(lessons, lab)["day1_x/11_y.new.ipynb"] == "beside"


def test_an_offer_that_the_learner_wrote_in_stays_too(lessons, lab):
    lay(lessons, lab)
    write_in(lab / NAME)
    publish(lessons, "x = 2")
    lay(lessons, lab)
    write_in(lab / "day1_x/11_y.new.ipynb", "x = 'also mine'")
    publish(lessons, "x = 3")
    assert lay(lessons, lab)[NAME] == "kept"
    assert source_of(lab / "day1_x/11_y.new.ipynb") == "x = 'also mine'"


def test_a_deleted_copy_comes_back(lessons, lab):
    lay(lessons, lab)
    (lab / NAME).unlink()
    assert lay(lessons, lab)[NAME] == "new"


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"day1_x/11_y.ipynb": 3}'])
def test_without_records_nothing_of_the_learner_is_lost(lessons, lab, damaged):
    lay(lessons, lab)
    write_in(lab / NAME)
    (lab / RECORD_NAME).write_text(damaged)
    publish(lessons, "x = 2")
    assert lay(lessons, lab)["day1_x/11_y.new.ipynb"] == "beside"
    assert source_of(lab / NAME) == "x = 'mine'"
    json.loads((lab / RECORD_NAME).read_text())


def test_a_copy_that_is_no_notebook_any_more_stays(lessons, lab):
    lay(lessons, lab)
    (lab / NAME).write_text("half a noteb")
    publish(lessons, "x = 2")
    assert lay(lessons, lab)["day1_x/11_y.new.ipynb"] == "beside"
    assert (lab / NAME).read_text() == "half a noteb"


def test_other_files_follow_the_same_rule(lessons, lab):
    lay(lessons, lab)
    (lab / "day1_x/ring.svg").write_text("<svg>mine</svg>")
    (lessons / "day1_x/ring.svg").write_text("<svg>new</svg>")
    assert lay(lessons, lab)["day1_x/ring.new.svg"] == "beside"


def test_a_folder_that_cannot_be(lessons, tmp_path):
    for folder in (lessons, lessons / "lab"):
        with pytest.raises(ValueError, match="choose another folder"):
            lay_working_copies(lessons, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        lay_working_copies(lessons, tmp_path / "file")
