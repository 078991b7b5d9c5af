"""Slow links: traffic divided by the inner steps, and hidden when streamed."""

import pytest

from workshop.facts.catalogue import link
from workshop.predict.diloco import Islands, fewest_inner_steps

SLOW = link("ethernet-10g")
PARAMS = 7e9


def test_the_outer_step_is_an_all_reduce():
    assert Islands(4, SLOW).outer_seconds(PARAMS) == pytest.approx(2 * 3 / 4 * PARAMS * 4 / 1.25e9)
    assert Islands(1, SLOW).outer_seconds(PARAMS) == 0


def test_talking_rarely_divides_the_cost():
    often, rarely = Islands(2, SLOW, 1), Islands(2, SLOW, 100)
    extra = [x.seconds_per_step(1.0, PARAMS) - 1.0 for x in (often, rarely)]
    assert extra[0] == pytest.approx(100 * extra[1])
    assert rarely.efficiency(1.0, PARAMS) > 0.8 > often.efficiency(1.0, PARAMS)


def test_streaming_hides_what_fits_under_the_inner_steps():
    assert Islands(2, SLOW, 100, streaming=True).efficiency(1.0, PARAMS) == 1
    assert Islands(2, SLOW, 10, streaming=True).efficiency(1.0, PARAMS) < 1


@pytest.mark.parametrize("streaming", [False, True])
def test_the_fewest_inner_steps_are_just_enough(streaming):
    base = Islands(2, SLOW, 1, streaming=streaming)
    steps = fewest_inner_steps(base, 1.0, PARAMS)
    assert Islands(2, SLOW, steps, streaming=streaming).efficiency(1.0, PARAMS) >= 0.95
    assert Islands(2, SLOW, steps - 1, streaming=streaming).efficiency(1.0, PARAMS) < 0.95


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match="inner_steps"):
        Islands(2, SLOW, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        fewest_inner_steps(Islands(2, SLOW), 1.0, PARAMS, 1.0)
