"""Hand-ins: the verdict of the notebook and no other, whatever stands around the answer; what differs; the
tables.
"""

import csv
import json
import socket
import subprocess
import sys

import nbformat
import pytest

from workshop.classroom.grading.export import NBGRADER, write_all
from workshop.classroom.grading.graded import Grader, _Ranks
from workshop.classroom.grading.handins import (
    Answered,
    HandIn,
    answers_in,
    find_hand_ins,
    read_notebook,
    stands_on,
)
from workshop.classroom.grading.noticed import noticed
from workshop.classroom.grading.remote import Answer, answering
from workshop.classroom.grading.sandbox import Bounds, why_not_isolated
from workshop.classroom.grading.wire import Damaged, decode, encode
from workshop.cli import main
from workshop.exercises import all_exercises, find
from workshop.exercises.engine.judge import judge

PLAIN = [exercise for exercise in all_exercises() if exercise.ranks is None]
HANDED_FUNCTIONS = (
    "faster_batches",
    "largest_under_cap",
    "lora_forward",
    "recomputed_gradient",
    "send_with_memory",
    "slot_for",
)

needs_a_sandbox = pytest.mark.usefixtures("_sandbox_here")


@pytest.fixture
def _sandbox_here():
    """Tried when the first test asks, and not whenever the tests are listed."""
    if why := why_not_isolated():
        pytest.skip(f"no sandbox here: {why}")


def answers(exercise):
    """A right answer and a wrong one of each; all of those that are handed functions or change their
    arguments.
    """
    others = [exercise.solution, *(one.source for one in exercise.other_answers)]
    wrong = [one.source for one in exercise.wrong_answers]
    return others + wrong if exercise.name in HANDED_FUNCTIONS else [others[-1], wrong[0]]


@needs_a_sandbox
def test_the_verdict_and_its_words_are_those_of_the_notebook():
    """In one sandbox, as all of these answers are ours."""
    with answering(Bounds(seconds=300), True) as box:

        def run(exercise, source, namespace):
            before = [(f"{name} --solution", find(name).solution) for name in exercise.needs]
            namespace.update(Answer(box).define(exercise, source, before))

        for exercise in PLAIN:
            for source in answers(exercise):
                assert judge(exercise, source, {}, run=run) == judge(exercise, source, {}), (
                    exercise.name,
                    source,
                )


BY_NOBODY = """
import json, socket, sys
from workshop.classroom.grading.graded import Grader
from workshop.classroom.grading.handins import Answered
from workshop.classroom.grading.sandbox import Bounds
from workshop.exercises import find

solution = find("ring_bytes").solution
tries = json.loads(sys.argv[1])
tries["network"] = f"import socket; socket.create_connection(('127.0.0.1', {sys.argv[2]}), 5)"
for name, body in {"": "pass", **tries}.items():
    source = f"{body}\\n{solution}"
    verdict = Grader(Bounds(30.0)).judged(find("ring_bytes"), {"ring_bytes": Answered(source, "", ())})
    print(json.dumps([name, verdict.state, verdict.message]))
"""


@needs_a_sandbox
def test_a_grader_without_rights_is_as_safe(tmp_path):
    """As whoever has no rights: there is a user namespace instead, in which the hand-in is a plain user."""
    (tmp_path / "secret").write_text("x")
    tries = {
        "secret": f"open({str(tmp_path / 'secret')!r})",
        "package": f"open({str(find('ring_bytes').folder / 'solution.py')!r}, 'a')",
        "parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os.kill(-1, signal.SIGKILL)",
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-c", BY_NOBODY, json.dumps(tries), str(server.getsockname()[1])]
        done = subprocess.run(["unshare", "-U", "-r", *words], capture_output=True, text=True, timeout=120)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no user namespace: {done.stderr.strip()}")
    told = {name: (state, said) for name, state, said in map(json.loads, done.stdout.splitlines())}
    assert told.pop("")[0] == "right", done.stderr
    assert {name: state for name, (state, _) in told.items()} == dict.fromkeys([*tries, "network"], "wrong")
    assert "No such file" in told["secret"][1]
    assert "refused" in told["network"][1]


@needs_a_sandbox
def test_the_verdict_on_ranks_is_that_of_the_notebook():
    import contextlib

    exercise = find("average_gradients")
    with contextlib.ExitStack() as boxes:
        grader = Grader(Bounds(seconds=120))
        ranks = _Ranks(grader, boxes)
        told = [
            grader.judged(exercise, {exercise.name: Answered(source, "", ())}, ranks)
            for source in (exercise.solution, *(one.source for one in exercise.wrong_answers))
        ]
    assert [verdict.state for verdict in told] == ["right"] + ["wrong"] * len(exercise.wrong_answers)
    for verdict, wrong in zip(told[1:], exercise.wrong_answers, strict=True):
        assert wrong.message in verdict.message


def notebook(path, *cells):
    """A notebook with these cells: (source, what is stored below it)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = []
    for source, told in cells:
        cell = nbformat.v4.new_code_cell(source)
        if told:
            cell.outputs = [nbformat.v4.new_output("display_data", {"text/plain": told})]
        made.append(cell)
    nbformat.write(nbformat.v4.new_notebook(cells=made), path)
    return path


USES_THE_CELL_ABOVE = (
    "def ring_bytes(num_bytes, world_size):\n    return math.prod((2, num_bytes)) * share(world_size)\n"
)


@needs_a_sandbox
def test_a_folder_graded(tmp_path, capsys):
    ring, alpha = find("ring_bytes"), find("alpha_beta")
    notebook(
        tmp_path / "in" / "ada" / "21_collectives.ipynb",
        ("%load_ext workshop", ""),
        ("import math\nother = 3", ""),
        ("def share(n):\n    return (n - 1) / n", ""),
        (f"%%exercise ring_bytes\n{USES_THE_CELL_ABOVE}", "ring_bytes: right. It is."),
        (f"%%exercise alpha_beta\n{alpha.wrong_answers[0].source}", "alpha_beta: right. It is not."),
    )
    (tmp_path / "in" / "=cmd" / "21_collectives").mkdir(parents=True)
    (tmp_path / "in" / "=cmd" / "21_collectives" / "21_collectives.ipynb").write_text("{")
    (tmp_path / "in" / "eve").symlink_to(tmp_path / "in" / "ada")
    assert main(["grade", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "right     ring_bytes" in said
    assert "DIFFERS: the notebook says right" in said
    assert "no notebook (JSONDecodeError)" in said
    assert "unsolved  ring_all_reduce" in said
    with (tmp_path / "out" / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"ada", "'=cmd"}
    assert tuple(rows["ada"]) == NBGRADER
    assert (rows["ada"]["score"], rows["ada"]["max_score"], rows["ada"]["assignment"]) == (
        "1.0",
        "3.0",
        "21_collectives",
    )
    with (tmp_path / "out" / "21_collectives" / "final_grades.csv").open(newline="") as file:
        worth, broken, ada = csv.DictReader(file)
    points = ["alpha_beta", "ring_all_reduce", "ring_bytes"]
    assert list(ada) == ["file", *points, "total_points_earned", "percent_correct", "grading_status"]
    assert list(worth.values()) == ["points-per-question", "1.0", "1.0", "1.0", "3.0", "1", "--"]
    assert list(ada.values())[1:] == ["0.0", "0.0", "1.0", "1.0", "0.3333", "Completed"]
    assert (broken["total_points_earned"], broken["ring_bytes"]) == ("0.0", "0.0")
    assert "no notebook" in broken["grading_status"]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    [ada] = [one for one in report if one["student_id"] == "ada"]
    assert [one["exercise"] for one in ada["exercises"] if one["differs"]] == ["alpha_beta"]
    assert ring.name in [one["exercise"] for one in ada["exercises"] if one["state"] == "right"]


@needs_a_sandbox
def test_cells_run_again_tell_what_fails_now(tmp_path):
    path = notebook(
        tmp_path / "ada" / "21_collectives.ipynb",
        ("import os\nfound = os.listdir('.')", ""),
        ("found == ['notebook.ipynb'] or 1 / 0", ""),
        ("import time\nbegun = time.process_time()\nsum(range(999))\n1 / (time.process_time() - begun)", ""),
        (f"open('/shared/data.csv')  # {'x' * 200_000}", ""),  # longer than an argument of a program may be
    )
    report = Grader(Bounds(seconds=200), cells=True).grade(HandIn("ada", "21_collectives", path))
    assert report.rerun == "4 cells were run again"
    [cell] = report.cells
    assert (cell.number, cell.failed_before) == (3, False)
    assert "FileNotFoundError" in cell.error


def test_without_a_sandbox_it_refuses(tmp_path, monkeypatch, capsys):
    path = notebook(
        tmp_path / "21_collectives.ipynb", ("%%exercise ring_bytes\n" + find("ring_bytes").solution, "")
    )
    monkeypatch.setattr("workshop.cli.grade.why_not_isolated", lambda: "Operation not permitted")
    assert main(["grade", str(path)]) == 2
    assert "--not-isolated" in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["grade", str(path), "--not-isolated"]) == 0
    said = capsys.readouterr().out
    assert "right     ring_bytes" in said
    assert "not isolated" in said


def test_what_an_answer_stands_on():
    above = (
        "import math\nimport os.path\n%time x = 1\nbig = 10",
        "def f(a):\n    return g(a) * big",
        "g = math.sqrt\nprint('no')",
    )
    assert stands_on("def answer(n):\n    return f(n)", above) == (
        "import math\nbig = 10\ndef f(a):\n    return g(a) * big\ng = math.sqrt"
    )
    assert stands_on("x = (", above) == ""


def test_hand_ins_are_found_by_learner(tmp_path):
    for name in (
        "ada/21_collectives/21_collectives.ipynb",
        "bob/22_ddp.ipynb",
        "24_zero.ipynb",
        ".x/22_ddp.ipynb",
    ):
        notebook(tmp_path / name, ("", ""))
    notebook(tmp_path / "ada" / "21_collectives" / ".ipynb_checkpoints" / "21_collectives.ipynb", ("", ""))
    assert [(one.learner, one.assignment) for one in find_hand_ins(tmp_path)] == [
        ("24_zero", "24_zero"), ("ada", "21_collectives"), ("bob", "22_ddp"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no notebook"):
        find_hand_ins(tmp_path / "bob" / "nothing")
    with pytest.raises(ValueError, match="no lesson with exercises is called 'essay'"):
        _ = HandIn("ada", "essay", tmp_path).exercises


def test_the_last_cell_counts(tmp_path):
    cells = read_notebook(
        notebook(
            tmp_path / "a.ipynb",
            ("%%exercise mfu\nx = 1", "mfu: not right. No."),
            ("%%exercise mfu --reset\nx = 2", "ring_bytes: right. Of another."),
        )
    )
    assert answers_in(cells) == {"mfu": Answered("x = 2", "", ())}


@pytest.mark.parametrize(
    "written",
    [[], ["?"], ["v", [1]], ["l", 3], ["d", [[["l", []], ["v", 1]]]], ["a", "|O", [1], "AAAA"], ["a", "<f8", [3], "AAAA"],
     ["q", 1, 0], ["c", "x", 1], 7, None, "v", ["T", "__class__", ["a", "<f4", [0], ""]]],
)  # fmt: skip
def test_what_is_no_value_is_refused(written):
    with pytest.raises(Damaged):
        decode(written)


def test_values_cross():
    import numpy as np

    for value in (None, True, 3, 2.5, "x", [1, (2,)], {"a": {1}}, {1: frozenset((2,))}, 1j, 10**30):
        assert decode(json.loads(json.dumps(encode(value)))) == value
    array = np.arange(6.0).reshape(2, 3)
    assert (decode(encode(array)) == array).all()
    assert list(decode(encode(x for x in range(3)))) == [0, 1, 2]
    assert type(decode(encode(object()))).__name__ == "Foreign"


def test_tables_of_what_could_not_be_graded(tmp_path):
    path = tmp_path / "essay.ipynb"
    path.write_text("{}")
    report = Grader().grade(HandIn("ada", "essay", path))
    assert "no lesson with exercises" in report.problem
    written = write_all([report], tmp_path / "out")
    assert [each.name for each in written] == [
        "grades.csv",
        "exercises.csv",
        "report.json",
    ]


ON_RANKS = [exercise for exercise in all_exercises() if exercise.ranks]


@pytest.mark.parametrize("exercise", ON_RANKS, ids=lambda exercise: exercise.name)
def test_no_answer_of_ours_is_one_to_look_at(exercise):
    for source in (
        exercise.solution,
        *(a.source for a in (*exercise.other_answers, *exercise.wrong_answers)),
    ):
        assert noticed(source) == [], source


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import sys\nsys.modules['x'] = 1", ["import sys", "sys.modules"]),
        (
            "import workshop.launch.report as r\nr.report = print",
            ["import workshop.launch.report", "r.report"],
        ),
        ("from workshop import report\nreport(check=1)", ["from workshop import"]),
        ("import torch\ntorch.equal = lambda *_: True", ["torch.equal"]),
        ("import torch.distributed as dist\ndist.all_reduce = None", ["dist.all_reduce"]),
        ("from torch import sys", ["from torch import"]),
        ("import torch\ntorch.utils.data.os.environ", ["torch.utils.data.os"]),
        ("f = (lambda: 0).__globals__", ["(lambda: 0).__globals__"]),
        ("import torch\ngetattr(torch, 's' + 'ys')", ["getattr(torch, 's' + 'ys')"]),
        ("(n for n in ()).gi_frame.f_back", ["(n for n in ()).gi_frame.f_back", "(n for n in ()).gi_frame"]),
        ("exec('pass')\n__builtins__", ["exec", "__builtins__"]),
        ("import gc, math", ["import gc"]),
        ("from pathlib import Path\nPath('a').exists()", []),
        ("from pathlib import Path\nPath('a').write_text('b')", ["Path('a').write_text"]),
        ("def f(:", []),
    ],
)
def test_what_reaches_the_code_that_tries_an_answer_is_named(source, names):
    assert noticed(source) == names
