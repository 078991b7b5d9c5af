import math

import pytest

from workshop.facts.nf4 import NF4_MIDPOINTS, NF4_VALUES, nf4_from_quantiles


def test_the_papers_values_come_from_quantiles():
    derived = nf4_from_quantiles()
    assert len(derived) == len(NF4_VALUES) == 16
    for printed, found in zip(NF4_VALUES, derived, strict=True):
        assert math.isclose(printed, found, abs_tol=2e-7)


def test_seven_below_zero_eight_above_and_zero_itself():
    assert list(NF4_VALUES) == sorted(set(NF4_VALUES))
    assert NF4_VALUES[7] == 0.0
    assert NF4_VALUES[0] == -1
    assert NF4_VALUES[15] == 1


def test_a_code_is_the_number_of_midpoints_below():
    for code, value in enumerate(NF4_VALUES):
        assert sum(middle < value for middle in NF4_MIDPOINTS) == code


@pytest.mark.parametrize("offset", [0.5, 1.0, 2.0])
def test_an_offset_with_no_quantile_is_refused(offset):
    with pytest.raises(ValueError, match="quantile"):
        nf4_from_quantiles(offset)
