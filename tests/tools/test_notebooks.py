import sys

import nbformat
import pytest

from tools import notebooks
from tools.rules import execution_problems, pairing_problems

SOURCE = """\
# %% [markdown]
# # A lesson

# %%
x = 20 + 1

# %%
print(2 * x)

# %% tags=["raises-exception"]
1 / 0
"""


@pytest.fixture
def lessons(tmp_path):
    source = tmp_path / "source" / "day1_x" / "11_y.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    return tmp_path


def make(lessons, *names):
    return notebooks.main(["--lessons", str(lessons), *names])


def read(lessons):
    return nbformat.read(lessons / "day1_x" / "11_y.ipynb", as_version=4)


def edit(lessons, old, new):
    source = lessons / "source" / "day1_x" / "11_y.py"
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))


def test_a_source_becomes_an_executed_lesson(lessons, capsys):
    assert make(lessons) == 0
    assert "11_y ..." in capsys.readouterr().out
    assert [*pairing_problems(lessons), *execution_problems(lessons)] == []
    notebook = read(lessons)
    assert notebook.cells[2].outputs[0].text == "42\n"
    assert notebook.cells[3].outputs[0].ename == "ZeroDivisionError"
    assert notebook.metadata == {"kernelspec": notebooks.KERNEL, "language_info": notebooks.LANGUAGE}
    assert all("execution" not in cell.metadata for cell in notebook.cells)


def test_two_runs_give_the_same_file(lessons):
    make(lessons)
    path = lessons / "day1_x" / "11_y.ipynb"
    before = path.read_bytes()
    path.unlink()
    make(lessons)
    assert path.read_bytes() == before  # also where no ids could be kept
    make(lessons)
    assert path.read_bytes() == before


def test_ids_stay_when_cells_change_move_or_come(lessons):
    make(lessons)
    before = [cell.id for cell in read(lessons).cells]
    edit(lessons, "x = 20 + 1", "x = 20 + 2")
    edit(lessons, "# %%\nprint", "# %%\ny = 3\n\n# %%\nprint")
    make(lessons)
    after = [cell.id for cell in read(lessons).cells]
    assert (after[0], after[1], after[3], after[4]) == tuple(before)
    assert after[2] not in before
    assert len(set(after)) == 5


def test_equal_cells_get_different_ids(lessons):
    edit(lessons, "# %%\nprint(2 * x)", "# %%\nx = 20 + 1")
    make(lessons)
    assert len({cell.id for cell in read(lessons).cells}) == 4


def test_an_error_without_the_tag_leaves_the_old_notebook(lessons):
    make(lessons)
    before = (lessons / "day1_x" / "11_y.ipynb").read_bytes()
    edit(lessons, "print(2 * x)", "print(2 * z)")
    with pytest.raises(Exception, match="name 'z' is not defined"):
        make(lessons)
    assert (lessons / "day1_x" / "11_y.ipynb").read_bytes() == before


def test_check(lessons, capsys):
    make(lessons)
    assert make(lessons, "--check") == 0
    assert "1 pairs agree" in capsys.readouterr().out
    edit(lessons, "20 + 1", "20 + 2")
    assert make(lessons, "--check") == 1
    assert "cell 2: differs from 11_y.py" in capsys.readouterr().err


def test_lessons_are_chosen_by_name(lessons, capsys):
    (lessons / "source" / "day1_x" / "12_z.py").write_text("# %%\nprint(1)\n")
    assert make(lessons, "12") == 0
    assert not (lessons / "day1_x" / "11_y.ipynb").exists()
    assert make(lessons, "99_none") == 2
    assert "there are: 11_y, 12_z" in capsys.readouterr().err


def test_the_kernel_is_this_python_in_the_lessons_folder(lessons):
    edit(lessons, "print(2 * x)", "import os, sys; print(sys.executable, os.getcwd())")
    make(lessons)
    assert read(lessons).cells[2].outputs[0].text == f"{sys.executable} {lessons / 'day1_x'}\n"


def test_magics_survive_the_pair(lessons):
    magic = "# %%\n# %%time\nprint(1)\n"
    (lessons / "source" / "day1_x" / "11_y.py").write_text(magic)
    make(lessons)
    assert read(lessons).cells[0].source == "%%time\nprint(1)"
    assert pairing_problems(lessons) == []


def test_what_was_printed_in_one_go_is_one_output():
    new = nbformat.v4.new_output
    said, more, error = (new("stream", name=name, text=text) for name, text in
                         (("stdout", "a\n"), ("stdout", "b\n"), ("stderr", "c\n")))  # fmt: skip
    found = notebooks.joined([said, more, error, new("stream", name="stdout", text="d\n")])
    assert [(output.name, output.text) for output in found] == [
        ("stdout", "a\nb\n"),
        ("stderr", "c\n"),
        ("stdout", "d\n"),
    ]


THE_END = "\n# %%\nprint('the end')\n"
RECORD = '\n# %% tags=["gpu-record"]\nshow.__name__\n' + THE_END


def test_a_record_is_shown_without_executing_the_lesson(lessons, capsys):
    source = lessons / "source" / "day1_x" / "11_y.py"
    source.write_text(SOURCE + THE_END)
    make(lessons)
    before = read(lessons)
    source.write_text(SOURCE + RECORD)
    edit(lessons, "# # A lesson", "# # The lesson")
    assert make(lessons, "--records") == 0
    after = read(lessons)
    assert after.cells[0].source == "# The lesson"
    assert after.cells[4].outputs[0].data["text/plain"] == "'workshop.show'"
    assert after.cells[4].outputs[0].execution_count == after.cells[4].execution_count == 4
    assert [cell.outputs for cell in (*after.cells[1:4], after.cells[5])] == [
        cell.outputs for cell in before.cells[1:]
    ]
    assert [*pairing_problems(lessons), *execution_problems(lessons)] == []
    whole = (lessons / "day1_x" / "11_y.ipynb").read_bytes()
    assert make(lessons, "--records") == 0
    assert (lessons / "day1_x" / "11_y.ipynb").read_bytes() == whole


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("x = 20 + 1", "x = 20 + 2", "other cells are not as they were executed"),
        ("\n# %%\nprint(2 * x)\n", "", "other cells are not as they were executed"),
        ("show.__name__", "show.bars(x)", "its record needs x of other cells"),
    ],
)
def test_a_record_is_not_shown_in_a_lesson_that_must_be_executed(lessons, capsys, old, new, why):
    source = lessons / "source" / "day1_x" / "11_y.py"
    source.write_text(SOURCE + THE_END)
    make(lessons)
    before = (lessons / "day1_x" / "11_y.ipynb").read_bytes()
    source.write_text(SOURCE + RECORD)
    edit(lessons, old, new)
    assert make(lessons, "--records") == 1
    assert why in capsys.readouterr().err
    assert (lessons / "day1_x" / "11_y.ipynb").read_bytes() == before


def test_prose_is_taken_over_without_executing_the_lesson(lessons):
    make(lessons)
    before = read(lessons)
    edit(lessons, "# # A lesson", "# # The lesson")
    assert make(lessons, "--prose") == 0
    after = read(lessons)
    assert after.cells[0].source == "# The lesson"
    assert after.cells[1:] == before.cells[1:]
    assert pairing_problems(lessons) == []


def test_prose_is_not_taken_over_where_code_changed_too(lessons, capsys):
    make(lessons)
    before = (lessons / "day1_x" / "11_y.ipynb").read_bytes()
    edit(lessons, "# # A lesson", "# # The lesson")
    edit(lessons, "x = 20 + 1", "x = 20 + 2")
    assert make(lessons, "--prose") == 1
    assert "11_y: its code is not as it was executed" in capsys.readouterr().err
    assert (lessons / "day1_x" / "11_y.ipynb").read_bytes() == before


def test_a_comment_is_taken_over_and_keeps_what_its_cell_printed(lessons):
    edit(lessons, "print(2 * x)", "print(2 * x)  # twice\n# nothing else")
    make(lessons)
    before = read(lessons)
    edit(lessons, "print(2 * x)  # twice\n# nothing else", "print(2 * x)  # double it\n# and no more")
    assert make(lessons, "--prose") == 0
    after = read(lessons)
    assert after.cells[2].source == "print(2 * x)  # double it\n# and no more"
    assert (after.cells[2].id, after.cells[2].outputs) == (before.cells[2].id, before.cells[2].outputs)
    assert pairing_problems(lessons) == []


def test_a_guess_asks_anew_what_its_comment_says_now(lessons):
    guess = "\n# %%\n# %load_ext workshop\n\n# %%\n# %%guess many --unit s\n# How long is it?\n...\n"
    (lessons / "source" / "day1_x" / "11_y.py").write_text(SOURCE.replace("1 / 0", "1 / 0\n" + guess))
    make(lessons)
    assert "How long is it?" in str(read(lessons).cells[5].outputs)
    edit(lessons, "# How long is it?", "# How many seconds does it take?")
    assert make(lessons, "--prose") == 0
    after = read(lessons).cells[5]
    assert "How many seconds does it take?" in str(after.outputs)
    assert "How long is it?" not in str(after)
    assert pairing_problems(lessons) == []
