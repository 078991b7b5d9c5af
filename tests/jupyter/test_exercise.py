"""The exercise magics in an IPython of their own, and in a real notebook."""

import json
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient

from workshop.exercises import all_exercises, find
from workshop.jupyter.exercise import ExerciseMagics

RING_BYTES = find("ring_bytes")


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("CI", "NBVAL", "WORKSHOP_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def shell(home):
    yield new_shell()
    InteractiveShell.clear_instance()


def new_shell():
    """A fresh IPython, the one that `display` knows."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.register_magics(ExerciseMagics)
    return shell


def run(shell, source):
    """What the cell displays: text and HTML of each output; an error of the cell is raised."""
    with capture_output() as captured:
        result = shell.run_cell(source)
    result.raise_error()
    return [(output.data["text/plain"], output.data.get("text/html", "")) for output in captured.outputs]


def error_of(shell, source):
    with capture_output() as captured:
        result = shell.run_cell(source)
    assert result.error_in_exec is not None
    return result.error_in_exec, captured.stdout + captured.stderr


def exercise_cell(exercise, source):
    return f"%%exercise {exercise.name}\n{source}"


def test_stub_wrong_right(shell, home):
    [(text, html)] = run(shell, exercise_cell(RING_BYTES, RING_BYTES.stub))
    assert text.startswith("ring_bytes: not solved yet.")
    assert RING_BYTES.question in text
    assert "Hint" not in text
    assert "not solved yet" in html
    assert run(shell, "assert ring_bytes(1000, 4) == 1500") == []
    [(text, _)] = run(shell, exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    assert RING_BYTES.wrong_answers[0].message in text
    assert f"Hint 1 of 3: {RING_BYTES.hints[0]}" in text
    [(text, _)] = run(
        shell,
        exercise_cell(RING_BYTES, "def ring_bytes(n, w):\n    mine = 2 * n * (w - 1) / w\n    return mine\n"),
    )
    assert text.startswith("ring_bytes: right.")
    assert "mine" in shell.user_ns["ring_bytes"].__code__.co_varnames
    kept = json.loads((home / "progress.json").read_text())["exercises"]
    assert kept == {"ring_bytes": {"tries": 2, "hints": 1, "solved": True}}


def test_hints_are_remembered_in_the_next_session(shell):
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    [(text, _)] = run(new_shell(), exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    assert "Hint 2 of 3" in text


@pytest.mark.parametrize("variable", [("CI", "true"), ("NBVAL", "1"), ("WORKSHOP_PROGRESS", "off")])
def test_in_ci_nothing_is_read_or_written(shell, home, monkeypatch, variable):
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    before = (home / "progress.json").read_text()
    monkeypatch.setenv(*variable)
    [(text, _)] = run(new_shell(), exercise_cell(RING_BYTES, RING_BYTES.wrong_answers[0].source))
    assert "Hint 1 of 3" in text
    assert (home / "progress.json").read_text() == before


def test_line_form(shell):
    [(text, html)] = run(shell, "%exercise ring_bytes")
    assert RING_BYTES.question in text
    assert "%%exercise ring_bytes" in html
    assert run(shell, "%exercise ring_bytes --hint")[0][0] == f"Hint 1 of 3: {RING_BYTES.hints[0]}"
    assert run(shell, "%exercise ring_bytes --hint")[0][0].startswith("Hint 2 of 3")
    assert RING_BYTES.solution.strip() in run(shell, "%exercise ring_bytes --solution")[0][0]
    [(text, _)] = run(shell, "%exercise ring_bytes --reset")
    assert RING_BYTES.stub.strip() in text
    assert run(shell, "%exercise ring_bytes --hint")[0][0].startswith("Hint 1 of 3")


def test_progress(shell):
    run(shell, exercise_cell(RING_BYTES, RING_BYTES.solution))
    [(text, html)] = run(shell, "%progress")
    assert text.splitlines()[-1] == f"1 of {len(all_exercises())} solved"
    assert "<td" in html


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ring_byte", r"no exercise is called 'ring_byte'. Did you mean 'ring_bytes'? Known: who_am_i, "),
        ("", "Known: who_am_i, "),
        ("ring_bytes --hnit", "--hint"),
        ("ring_bytes ddp_bytes", "unrecognized arguments: ddp_bytes"),
    ],
)
@pytest.mark.parametrize("form", ["%exercise {}", "%%exercise {}\nx = 1\n"])
def test_what_does_not_exist_is_an_ordinary_exception(shell, form, line, words):
    error, shown = error_of(shell, form.format(line))
    assert isinstance(error, ValueError)
    assert words in str(error)
    assert words in " ".join(shown.split())


def test_progress_takes_no_argument(shell):
    error, _ = error_of(shell, "%progress ring_bytes")
    assert "for one exercise, %exercise ring_bytes" in str(error)


def test_an_error_in_the_learners_cell_does_not_stop_the_notebook(shell):
    [(text, _)] = run(shell, "%%exercise ring_bytes\ndef ring_bytes(n, w):\n    return n / 0\n")
    assert "Line 3, `return n / 0`: ZeroDivisionError" in text
    assert shell.user_ns["ring_bytes"](1000, 4) == 1500


def test_the_stop_button_stops(shell):
    error, _ = error_of(shell, "%%exercise ring_bytes\nraise KeyboardInterrupt\n")
    assert isinstance(error, KeyboardInterrupt)


def test_a_cell_without_code_is_unsolved(shell):
    [(text, _)] = run(shell, "%%exercise ring_bytes\n# later\n")
    assert "the cell is empty" in text


def test_a_broken_file_is_said_once(shell, home):
    (home / "progress.json").write_text("broken")
    shell = new_shell()
    assert [("starting anew" in text) for text, _ in run(shell, "%progress")] == [False, True]
    assert len(run(shell, "%progress")) == 1


PROGRAM = """\
%%torchrun -n 2 --into results --pass ring_all_reduce,my_share
import torch, torch.distributed as dist
from workshop import report
dist.init_process_group("gloo")
tensor = torch.ones(4)
ring_all_reduce(tensor)
report(total=tensor, share=my_share([0, 1, 2], dist.get_rank(), 2))
"""

RESULTS = """\
assert results[0]["total"].tolist() == [2.0] * 4
assert [results[rank]["share"] for rank in range(2)] == [[0], [1, 2]]  # the reference takes every second one
"""

CALLED_HERE = """\
try:
    my_share([1], 0, 1)
except RuntimeError as error:
    print(error)
"""

(SLICES,) = [other.source for other in find("who_am_i").other_answers if other.name == "slices"]

WELCOME = Path(__file__).parents[2] / "notebooks" / "day0_welcome" / "00_welcome.ipynb"


def next_cell(path, words):
    """The lesson's own cell that begins with these words."""
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    (cell,) = [cell for cell in cells if cell.startswith("%%") and words in cell.partition("\n")[0]]
    return cell


NOTEBOOK = (
    "%load_ext workshop",
    exercise_cell(find("who_am_i"), find("who_am_i").stub),
    exercise_cell(find("ring_all_reduce"), find("ring_all_reduce").stub),
    exercise_cell(find("who_am_i"), SLICES),
    PROGRAM,
    RESULTS,
    exercise_cell(RING_BYTES, RING_BYTES.solution + "\nring_bytes(1000, 4)\n"),
    "import sys; assert 'torch' not in sys.modules",
    CALLED_HERE,
    "%progress",
    next_cell(WELCOME, "--pass my_share"),
)


@pytest.mark.second_try(
    reason="a kernel's ports are chosen before it binds them: another process can take one (jupyter_client)"
)
def test_a_notebook_runs_to_its_end_and_reads_the_same_twice(monkeypatch):
    monkeypatch.setenv("WORKSHOP_PROGRESS", "off")
    first, second = (execute() for _ in range(2))
    assert first == second
    stub, ring, right, *_ = first[1:]
    assert "not solved yet" in stub
    assert find("ring_all_reduce").question in ring
    assert "For now `ring_all_reduce` is the reference solution" in ring
    assert "Of 10 items, rank 0 took 0 1; rank 1" in right
    assert first[6].startswith("1500.0\n")
    assert "my_share lives on ranks: hand it over with --pass my_share" in first[8]
    assert f"2 of {len(all_exercises())} solved" in first[9]
    for share in "a b", "c d e", "f g", "h i j":  # the reference takes every fourth
        assert f"takes {share}\n" in first[10]  # in 00_welcome's own next cell


def execute():
    """Each cell's outputs as text."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in NOTEBOOK])
    NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
    return ["\n".join(map(as_text, cell.outputs)) for cell in notebook.cells]


def as_text(output):
    return output["text"] if output.output_type == "stream" else output["data"]["text/plain"]


def test_a_guess_is_asked_kept_and_compared(shell, home):
    asks = "%%guess wire_bytes --unit B\n# How many bytes does a rank send?\n"
    [(text, html)] = run(shell, asks + "...")
    assert text.startswith("How many bytes does a rank send?\nNo guess yet: write a number (in B)")
    assert "How many bytes" in html
    assert not (home / "guesses.json").exists()
    assert run(shell, "size = 8") == []
    [(text, _)] = run(shell, asks + "2 * size")
    assert "Your guess: 16 B." in text
    [(text, _)] = run(
        shell,
        "from workshop.exercises.engine.guess import beside\ndisplay(beside('wire_bytes', measured=12, predicted=12.0))",
    )
    assert text.splitlines()[0] == "yours      16 B  1.3 times too much"
    [(text, html)] = run(new_shell(), "%progress")
    assert text.splitlines()[-1].split() == [
        "wire_bytes",
        "16",
        "B",
        "12",
        "B",
        "1.3",
        "times",
        "too",
        "much",
    ]
    assert "1.3 times too much" in html


def test_a_guess_of_another_kind_is_told_in_a_sentence(shell, home):
    error, printed = error_of(shell, "%%guess loss --choices falls,rises\n# Which?\n'fals'")
    assert "Did you mean 'falls'?" in printed
    assert isinstance(error, ValueError)
