"""Lessons are paired, executed, without stored errors and without shell lines; bad examples are found."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.rules import execution_problems, long_line_problems, pairing_problems, shell_problems

LESSONS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("rule", [pairing_problems, execution_problems, shell_problems])
def test_the_lessons_keep_the_rule(rule):
    assert list(LESSONS.rglob("*.ipynb")), "no lessons"
    assert [str(problem) for problem in rule(LESSONS)] == []


def test_a_page_clips_no_line_of_code():
    assert [str(problem) for problem in long_line_problems(LESSONS)] == []


def code(source, count=1, outputs=("hello\n",), tags=()):
    made = [new_output("stream", name="stdout", text=text) for text in outputs]
    return new_code_cell(
        source, execution_count=count, outputs=made, metadata={"tags": list(tags)} if tags else {}
    )


@pytest.fixture
def lay(tmp_path):
    """Write a lesson as a pair and return the folder; the source may be given apart."""

    def lay_pair(cells, source_cells=None):
        notebook = new_notebook(cells=cells)
        source = tmp_path / "source" / "day1_x" / "11_y.py"
        target = tmp_path / "day1_x" / "11_y.ipynb"
        for path in (source, target):
            path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
        other = notebook if source_cells is None else new_notebook(cells=source_cells)
        source.write_text(jupytext.writes(other, fmt="py:percent"))
        return tmp_path

    return lay_pair


def whats(problems):
    return " ".join(problem.what for problem in problems)


def test_a_good_pair(lay):
    cells = [
        new_markdown_cell("# A"),
        code("%%torchrun -n 2\nprint('hello')"),
        code("1 / 0", 2, tags=["raises-exception"]),
    ]
    folder = lay(cells)
    assert [*pairing_problems(folder), *execution_problems(folder), *shell_problems(folder)] == []


def test_differing_text(lay):
    assert "differs from 11_y.py" in whats(pairing_problems(lay([code("x = 1")], [code("x = 2")])))


def test_differing_tags(lay):
    cells = [code("x = 1", tags=["raises-exception"])]
    assert "differs" in whats(pairing_problems(lay(cells, [code("x = 1")])))


def test_a_cell_too_many(lay):
    folder = lay([code("x = 1"), code("y = 1", 2)], [code("x = 1")])
    (problem,) = pairing_problems(folder)
    assert problem.where == "cell 2"


def test_half_a_pair(lay):
    folder = lay([code("x = 1")])
    (folder / "source" / "day1_x" / "12_z.py").write_text("# %%\nx = 1\n")
    assert "has no notebook" in whats(pairing_problems(folder))
    (folder / "source" / "day1_x" / "12_z.py").unlink()
    (folder / "source" / "day1_x" / "11_y.py").unlink()
    assert "has no source" in whats(pairing_problems(folder))


def test_ids_twice(lay):
    folder = lay([code("x = 1"), code("y = 1", 2)])
    target = folder / "day1_x" / "11_y.ipynb"
    text = target.read_text()
    ids = [cell.id for cell in nbformat.reads(text, as_version=4).cells]
    target.write_text(text.replace(ids[1], ids[0]))
    assert "same one" in whats(pairing_problems(folder))


def test_not_executed(lay):
    assert "without having been executed" in whats(execution_problems(lay([code("x = 1", None, outputs=())])))
    assert "from top to bottom" in whats(execution_problems(lay([code("x = 1", 2)])))


def test_a_stored_error(lay):
    cell = code("1 / 0")
    cell.outputs.append(new_output("error", ename="ZeroDivisionError", evalue="", traceback=[]))
    assert "a stored error" in whats(execution_problems(lay([cell])))
    cell.metadata["tags"] = ["raises-exception"]
    assert execution_problems(lay([cell])) == []


def test_stored_words_on_stderr(lay):
    cell = code("import bitsandbytes")
    cell.outputs.append(new_output("stream", name="stderr", text="Failed to load a kernel\n"))
    assert "stored words on stderr" in whats(execution_problems(lay([cell])))


@pytest.mark.parametrize(
    "line", ["!ls", "  !ls", "%%bash\nls", "%%sh\nls", "%system ls", "files = !ls", "%sx ls"]
)
def test_shell_lines(lay, line):
    assert "a shell line" in whats(shell_problems(lay([code(line)])))


@pytest.mark.parametrize(
    "line", ["a != b", "x = not_a(1)", "%%torchrun -n 2\nprint()", "%ranks start", "# !ls"]
)
def test_no_shell_lines(lay, line):
    assert shell_problems(lay([code(line)])) == []


def test_a_long_line_is_found(lay):
    long = "x = " + "1 + " * 22 + "1"
    (problem,) = long_line_problems(lay([code("%%torchrun -n 2"), code(long, 2), code("# ok", 3)]))
    assert problem.where == "cell 2"
    assert "93 columns, at most 88" in problem.what
