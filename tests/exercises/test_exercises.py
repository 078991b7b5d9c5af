"""Every exercise by its folder: the stub asks, each wrong answer is told its own fault, right ones pass and stay."""

import subprocess
import sys
from pathlib import Path

import pytest

from workshop.exercises import all_exercises
from workshop.exercises.engine.cell import file_name
from workshop.exercises.engine.feedback import answer
from workshop.exercises.engine.judge import judge
from workshop.exercises.engine.progress import Attempts, Progress

EXERCISES = all_exercises()


def by_name(exercise):
    return exercise.name


def each_answer(kind):
    return [
        pytest.param(exercise, one, id=f"{exercise.name}: {one.name}")
        for exercise in EXERCISES
        for one in getattr(exercise, kind)
    ]


def test_every_folder_is_an_exercise():
    root = Path(EXERCISES[0].folder).parent
    folders = {path.name for path in root.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders - {"engine"} == {exercise.name for exercise in EXERCISES}


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_the_stub_asks_costs_no_hint_and_starts_nothing(exercise, monkeypatch):
    from workshop import launch

    monkeypatch.setattr(launch, "torchrun", lambda *_, **__: pytest.fail("ranks were started"))
    namespace, progress = {}, Progress(None)
    for source in (exercise.stub, f"# let me see\n\n{exercise.stub}\n# ...\n", "# later\n", ""):
        feedback = answer(exercise, source, namespace, progress)
        assert feedback.verdict.state == "unsolved"
        assert exercise.question in str(feedback)
        assert "Hint" not in str(feedback)
        assert progress[exercise.name] == Attempts()
        assert set(namespace) == set(exercise.defines)
    lines = exercise.stub.splitlines()
    message = judge(exercise, exercise.stub, {}).message
    assert "for your code" in message
    for number in [int(word.strip(",")) for word in message.split() if word.strip(",").isdigit()]:
        assert "..." in lines[number - 2]  # the magic is line 1


@pytest.mark.parametrize(("exercise", "wrong"), each_answer("wrong_answers"))
def test_each_wrong_answer_is_told_its_own_fault(exercise, wrong):
    verdict = judge(exercise, wrong.source, {})
    assert verdict.state == "wrong"
    assert wrong.message in verdict.message


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_the_solution_passes(exercise):
    passes(exercise, exercise.solution)


@pytest.mark.parametrize(("exercise", "other"), each_answer("other_answers"))
def test_other_right_answers_pass(exercise, other):
    passes(exercise, other.source)


def passes(exercise, source):
    """The answer is right, and what the cells below call is the learner's own."""
    namespace = {}
    verdict = judge(exercise, source, namespace)
    assert (verdict.state, verdict.printed) == ("right", ""), verdict.message
    assert "On a GPU it would fail" not in verdict.message
    for name in exercise.defines:
        function = namespace[name]
        if exercise.ranks:
            assert function.source == source
        else:
            assert function.__code__.co_filename == file_name(exercise.name)


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_what_belongs_to_an_exercise(exercise):
    assert len(exercise.wrong_answers) >= 3
    assert len({wrong.message for wrong in exercise.wrong_answers}) == len(exercise.wrong_answers)
    assert len(exercise.other_answers) >= 1
    assert len(exercise.hints) >= 2
    assert exercise.solution not in exercise.hints
    assert (exercise.folder / "on_ranks.py").is_file() == bool(exercise.ranks)
    assert (exercise.folder / "__init__.py").is_file()  # else the import rules pass it by
    for needed in exercise.needs:
        assert needed in [earlier.name for earlier in EXERCISES[: EXERCISES.index(exercise)]]
    for name in exercise.defines:
        assert f"def {name}(" in exercise.stub
        assert f"def {name}(" in exercise.solution
        assert f"`{name}(" in exercise.question


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_name)
def test_every_file_of_the_folder_is_of_a_known_kind(exercise):
    needed = {"__init__", "answers", "check", "exercise", "solution", "stub"}
    files = {path.stem for path in exercise.folder.iterdir() if path.is_file()}
    assert needed <= files <= needed | {"files", "on_ranks"}


def test_names_are_unique_and_each_has_its_place():
    assert len({exercise.name for exercise in EXERCISES}) == len(EXERCISES)
    places = {}
    for exercise in EXERCISES:
        places.setdefault(exercise.lesson, []).append(exercise.place)
    assert all(found == list(range(1, len(found) + 1)) for found in places.values()), places


def test_no_exercise_loads_torch_here_unless_its_own_cell_does():
    program = (
        "import sys\n"
        "from workshop.exercises import all_exercises\n"
        "from workshop.exercises.engine.judge import bind_solution, judge\n"
        "for exercise in all_exercises():\n"
        "    namespace = {}\n"
        "    assert callable(exercise.check)\n"
        "    if exercise.ranks is None and 'import torch' in exercise.stub:\n"
        "        continue\n"
        "    judge(exercise, exercise.stub, namespace)\n"
        "    bind_solution(exercise, namespace)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
