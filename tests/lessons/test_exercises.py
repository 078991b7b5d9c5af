"""Every exercise three ways: the stub waits, each wrong answer is told its own fault, the solution passes."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.lessons import all_exercises
from workshop.lessons.judge import judge

EXERCISES = all_exercises()
SOURCES = [
    pytest.param(source, id=f"{exercise.name}: {which}")
    for exercise in EXERCISES
    for which, source in [
        ("stub", exercise.stub),
        ("solution", exercise.solution),
        *((wrong.name, wrong.source) for wrong in exercise.wrong_answers),
    ]
]


def by_name(exercise):
    return exercise.name


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_the_stub_waits_and_starts_nothing(exercise, monkeypatch):
    from workshop import launch

    monkeypatch.setattr(launch, "torchrun", lambda *_, **__: pytest.fail("ranks were started"))
    namespace = {}
    verdict = judge(exercise, exercise.stub, namespace)
    assert verdict.state == "unsolved"
    assert "for your code" in verdict.message
    lines = exercise.stub.splitlines()
    for number in [int(word.strip(",")) for word in verdict.message.split() if word.strip(",").isdigit()]:
        assert "..." in lines[number - 2]  # the magic is line 1
    assert namespace == {}


@pytest.mark.parametrize(
    ("exercise", "wrong"),
    [
        pytest.param(exercise, wrong, id=f"{exercise.name}: {wrong.name}")
        for exercise in EXERCISES
        for wrong in exercise.wrong_answers
    ],
)
def test_each_wrong_answer_is_told_its_own_fault(exercise, wrong):
    verdict = judge(exercise, wrong.source, {})
    assert verdict.state == "wrong"
    assert wrong.message in verdict.message


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_the_solution_passes(exercise):
    namespace = {}
    verdict = judge(exercise, exercise.solution, namespace)
    assert (verdict.state, verdict.printed) == ("right", ""), verdict.message
    assert set(exercise.defines) <= set(namespace)


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_what_belongs_to_an_exercise(exercise):
    assert len(exercise.wrong_answers) >= 3
    assert len({wrong.message for wrong in exercise.wrong_answers}) == len(exercise.wrong_answers)
    assert len(exercise.hints) >= 2
    assert exercise.solution not in exercise.hints
    assert bool(exercise.ranks) == bool(exercise.check_program)
    for needed in exercise.needs:
        assert needed in [earlier.name for earlier in EXERCISES[: EXERCISES.index(exercise)]]
    for name in exercise.defines:
        assert f"def {name}(" in exercise.stub
        assert f"def {name}(" in exercise.solution
        assert f"`{name}(" in exercise.question


@pytest.mark.parametrize("source", SOURCES)
def test_sources_are_python(source):
    ast.parse(source)
    assert source.endswith("\n")
    assert max(map(len, source.splitlines())) <= 110


def test_sources_are_ruff_clean(tmp_path):
    """Undefined names are allowed (a stub's `...` stands for what binds them), unused ones in stubs only."""
    ids = {}
    for number, param in enumerate(SOURCES):
        name = f"{'stub' if param.id.endswith(': stub') else 'answer'}_{number}.py"
        (tmp_path / name).write_text(param.values[0])
        ids[name] = param.id
    rules = ["--isolated", "--line-length=110", "--target-version=py311", "--select=E,F,W,I,B,UP"]
    unused = ",".join(f"stub_*.py:{rule}" for rule in ("F401", "F841", "B007"))
    rules += ["--ignore=F821", f"--per-file-ignores={unused}"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, "--output-format=json", str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    problems = json.loads(done.stdout)
    assert [f"{ids[Path(p['filename']).name]}: {p['message']}" for p in problems] == []


def test_no_exercise_loads_torch_here():
    program = (
        "import sys\n"
        "from workshop.lessons import all_exercises\n"
        "from workshop.lessons.judge import bind_solution, judge\n"
        "for exercise in all_exercises():\n"
        "    namespace = {}\n"
        "    judge(exercise, exercise.stub, namespace)\n"
        "    bind_solution(exercise, namespace)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
