"""The files of the exercise `wrong_settings` have exactly the mistake that the answer names."""

import pytest

from workshop.configs import Overrides, find_mistakes
from workshop.exercises.wrong_settings.files import ANSWERS, FILES, NOTHING


def test_there_is_an_answer_for_each_file():
    assert list(ANSWERS) == list(FILES)
    assert list(ANSWERS.values()).count((NOTHING,)) == 1


@pytest.mark.parametrize("letter", FILES)
def test_the_answer_is_what_is_found(letter):
    given = Overrides(device="H100") if "GPU" in FILES[letter] else Overrides()
    found = [mistake.key.split(".")[-1] for mistake in find_mistakes(FILES[letter], given)]
    assert found == ([] if ANSWERS[letter] == (NOTHING,) else [ANSWERS[letter][0]])
