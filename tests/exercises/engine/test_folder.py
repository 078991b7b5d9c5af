"""Slips in an exercise's settings and answers are told: the file, what is wrong, what is known."""

import pytest

from workshop.exercises import find
from workshop.exercises.engine.answers import Answer
from workshop.exercises.engine.folder import SETTINGS, read_exercise

RIGHT = '''
title = "Twice"
lesson = "11_numbers"
place = 1
question = """
Write `twice(x)`:
two times x."""
hints = ["Add it\\nto itself.", "x + x"]
shows = "Doubling."
'''
ANSWERS = """
# %% other: sum
def twice(x):
    return x + x


# %% wrong: half
# message: That is half
import math


# the smaller
def twice(x):
    return math.floor(x / 2)
"""


def laid(folder, settings=RIGHT, answers=ANSWERS):
    exercise = folder / "twice"
    exercise.mkdir()
    (exercise / SETTINGS).write_text(settings)
    (exercise / "stub.py").write_text("def twice(x):\n    return ...\n")
    (exercise / "solution.py").write_text("def twice(x):\n    return 2 * x\n")
    (exercise / "answers.py").write_text(answers)
    return exercise


def test_a_folder_is_read(tmp_path):
    exercise = read_exercise(laid(tmp_path))
    assert (exercise.name, exercise.day, exercise.defines) == ("twice", 1, ("twice",))
    assert exercise.question == "Write `twice(x)`:\ntwo times x."
    assert exercise.hints == ("Add it to itself.", "x + x")
    assert exercise.stub.endswith("return ...\n")
    assert exercise.solution.endswith("return 2 * x\n")
    assert exercise.other_answers == (Answer("sum", "def twice(x):\n    return x + x\n"),)
    half = "import math\n\n\n# the smaller\ndef twice(x):\n    return math.floor(x / 2)\n"
    assert exercise.wrong_answers == (Answer("half", half, "That is half"),)
    assert exercise.check_program == ""


def test_an_exercise_on_ranks_runs_its_check_with_what_it_defines(tmp_path):
    exercise = read_exercise(laid(tmp_path, 'ranks = 2\ndefines = ["save", "load"]\n' + RIGHT))
    assert exercise.check_program == (
        "from workshop.exercises.engine.cpu_tensors import check_followed\n"
        "from workshop.exercises.twice.on_ranks import try_on_rank\n"
        "check_followed(try_on_rank, save, load)\n"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            'hint = "x"\n' + RIGHT,
            r"twice/exercise.toml: 'hint' is no key. Did you mean 'hints'\? Known: title, ",
        ),
        (RIGHT.replace("place = 1", ""), "twice/exercise.toml lacks place. Needed: title, lesson, place, "),
        (RIGHT.replace("place = 1", 'place = "1"'), "place is '1'; wanted a whole number"),
        (RIGHT.replace("place = 1", "place = true"), "place is True; wanted a whole number"),
        (RIGHT.replace('"Twice"', "2"), "title is 2; wanted a text"),
        (RIGHT.replace("11_numbers", "numbers"), "lesson is 'numbers'; wanted a notebook, as '22_ddp'"),
        (RIGHT.replace("11_numbers", ""), "lesson is ''; wanted a notebook"),
        (RIGHT.replace('"x + x"', "3"), r"hints is \['Add it\\nto itself.', 3\]; wanted a list of texts"),
        (RIGHT.replace("place = 1", "place ="), "twice/exercise.toml is not TOML: "),
    ],
)
def test_a_slip_is_told(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        read_exercise(laid(tmp_path, settings))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            "import math\n" + ANSWERS,
            "twice/answers.py begins with 'import math'; wanted `# %% other: NAME` or ",
        ),
        ("def twice(x): ...", "begins with 'def twice"),
        (
            ANSWERS.replace("other: sum", "otter: sum"),
            "answers.py, line 2: '# %% otter: sum'; wanted `# %% other: ",
        ),
        (ANSWERS.replace("other: sum", "other"), "line 2: '# %% other'; wanted "),
        (ANSWERS.replace("other: sum", "other: a sum"), "line 2: '# %% other: a sum'; wanted "),
        (ANSWERS.replace("other: sum", ""), "line 2: '# %% '; wanted "),
        (ANSWERS + "# %% wrong: half\n# message: x\n", "line 15: there is a wrong answer 'half' above"),
        (
            ANSWERS.replace("# message: That is half\n", ""),
            "line 7: the wrong answer 'half' has no message. On the ",
        ),
        (ANSWERS.replace(" That is half", " "), "line 7: the wrong answer 'half' has no message. "),
        (
            ANSWERS + "# %% wrong: last\n# message: x\n",
            "line 15: the wrong answer 'last' has no code. Write the whole ",
        ),
        (ANSWERS + "# %% other: last\n# message: x\n\n", "line 15: the other answer 'last' has no code"),
        (ANSWERS + "# %% wrong: last", "line 15: the wrong answer 'last' has no message"),
    ],
)
def test_answers_that_are_not_told_apart(tmp_path, answers, words):
    with pytest.raises(ValueError, match=words):
        read_exercise(laid(tmp_path, answers=answers))


def test_answers_that_are_missing_or_where_they_used_to_be(tmp_path):
    exercise = laid(tmp_path)
    (exercise / "answers.py").unlink()
    with pytest.raises(
        ValueError, match=r"there is no twice/answers.py: a cell for each answer, below `# %% "
    ):
        read_exercise(exercise)
    (exercise / SETTINGS).write_text(RIGHT + '[wrong]\nhalf = "That is half"\n')
    with pytest.raises(
        ValueError, match=r"'wrong' is no key. Answers and their messages are in answers.py. Known"
    ):
        read_exercise(exercise)


def test_the_same_name_may_be_right_and_wrong_and_a_file_may_be_empty(tmp_path):
    both = ANSWERS + "# %% other: half\ndef twice(x): return x * 2\n"
    assert [one.name for one in read_exercise(laid(tmp_path, answers=both)).other_answers] == ["sum", "half"]
    (tmp_path / "twice" / "answers.py").write_text("\n")
    assert read_exercise(tmp_path / "twice").wrong_answers == ()


def test_a_real_one_has_all_it_needs():
    assert find("who_am_i").defines == ("my_share",)
    assert find("largest_under_cap").needs == ("ddp_bytes",)
