"""Slips in an exercise's settings are told: the file, what is wrong, what is known."""

import pytest

from workshop.exercises import find
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

[wrong]
half = "That is half"
'''


def laid(folder, settings=RIGHT, wrong=("half",)):
    exercise = folder / "twice"
    exercise.mkdir()
    (exercise / SETTINGS).write_text(settings)
    (exercise / "stub.py").write_text("def twice(x):\n    return ...\n")
    (exercise / "solution.py").write_text("def twice(x):\n    return 2 * x\n")
    (exercise / "other_sum.py").write_text("def twice(x):\n    return x + x\n")
    for name in wrong:
        (exercise / f"wrong_{name}.py").write_text(f"# {name}\n")
    return exercise


def test_a_folder_is_read(tmp_path):
    exercise = read_exercise(laid(tmp_path))
    assert (exercise.name, exercise.day, exercise.defines) == ("twice", 1, ("twice",))
    assert exercise.question == "Write `twice(x)`:\ntwo times x."
    assert exercise.hints == ("Add it to itself.", "x + x")
    assert exercise.stub.endswith("return ...\n")
    assert exercise.solution.endswith("return 2 * x\n")
    assert [(one.name, one.source, one.message) for one in exercise.wrong_answers] == [
        ("half", "# half\n", "That is half")
    ]
    assert [one.name for one in exercise.other_answers] == ["sum"]
    assert exercise.check_program == ""


def test_an_exercise_on_ranks_runs_its_check_with_what_it_defines(tmp_path):
    exercise = read_exercise(laid(tmp_path, 'ranks = 2\ndefines = ["save", "load"]\n' + RIGHT))
    assert exercise.check_program == (
        "from workshop.exercises.twice.on_ranks import try_on_rank\ntry_on_rank(save, load)\n"
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
        (RIGHT.replace('"That is half"', "0.5"), "wanted a table of texts"),
        (RIGHT.replace("place = 1", "place ="), "twice/exercise.toml is not TOML: "),
        (RIGHT + 'third = "x"\n', r"has 'third', and there is no file wrong_third.py. Files there: half"),
        (
            RIGHT.replace("half =", "hlaf ="),
            r"twice/wrong_half.py has no message: write `half = ...` under \[wrong\]",
        ),
    ],
)
def test_a_slip_is_told(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        read_exercise(laid(tmp_path, settings))


def test_a_real_one_has_all_it_needs():
    assert find("who_am_i").defines == ("my_share",)
    assert find("largest_under_cap").needs == ("ddp_bytes",)
