"""The learning rate is a function of the step."""

import pytest

from workshop.train.settings import Schedule


def test_warm_up_reaches_the_peak_in_a_line():
    rate = Schedule(1.0, "cosine", num_steps=20, warmup=4)
    assert [rate(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "middle", "late"),
    [("constant", 1, 1), ("cosine", 0.5, 0.0245), ("linear", 0.5, 0.1), ("wsd", 1, 0.5)],
)
def test_shapes(name, middle, late):
    rate = Schedule(1.0, name, num_steps=20)
    assert rate(10) == pytest.approx(middle)
    assert rate(18) == pytest.approx(late, abs=1e-4)


def test_it_ends_at_the_floor_and_stays_there():
    rate = Schedule(2.0, "linear", num_steps=10, floor=0.1)
    assert rate(10) == rate(500) == pytest.approx(0.2)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="unknown schedule 'cos'; did you mean 'cosine'"):
        Schedule(1.0, "cos", 10)
    with pytest.raises(ValueError, match="warmup of 10 steps leaves nothing of 10"):
        Schedule(1.0, "cosine", 10, warmup=10)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Schedule(1.0, "cosine", 10, floor=2)
