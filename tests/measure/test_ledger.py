"""The ledger's arithmetic, without torch."""

import pytest

from workshop.measure.ledger import Ledger


def a_step(ledger: Ledger) -> None:
    """Weights of 100, an activation of 30 kept for backward, a forward temporary of 50, a backward temporary
    of 40."""
    weights = ledger.open(100)
    kept = ledger.open(30)
    passing = ledger.open(50)
    ledger.change(passing, -50)
    ledger.phase("backward")
    late = ledger.open(40)
    gradient = ledger.open(100)
    ledger.change(kept, -30)
    ledger.change(late, -40)
    ledger.phase("optimizer")
    ledger.label(weights, "weights")
    ledger.label(gradient, "gradients")
    ledger.phase("forward")
    ledger.end_step()


def test_parts_are_judged_by_lives_and_sum_to_the_peak():
    ledger = Ledger()
    a_step(ledger)
    report = ledger.report()
    assert report.peak_bytes == 270
    assert report.peak_parts == {"weights": 100, "gradients": 100, "activations": 30, "temporaries": 40}
    assert report.peak_phase == "backward"
    assert ledger.live_bytes == 200


def test_each_step_has_its_peak():
    ledger = Ledger()
    first = ledger.open(10)
    ledger.end_step()
    ledger.change(first, -10)
    ledger.open(7)
    ledger.end_step()
    assert ledger.report().step_peaks == [10, 7]


def test_growing_and_shrinking_owners():
    ledger = Ledger()
    owner = ledger.open(10, "gathered weights")
    ledger.change(owner, 90)
    ledger.change(owner, -100)
    ledger.change(owner, 60)
    report = ledger.report()
    assert report.peak_bytes == 100
    assert report.timeline.total_bytes[-1] == 60


def test_the_last_label_counts_but_a_guess_does_not_overrule():
    ledger = Ledger()
    owner = ledger.open(10, "communication")
    ledger.label_if_unknown(owner, "activations")
    assert ledger.report().peak_parts == {"communication": 10}
    ledger.label(owner, "gradients")
    assert ledger.report().peak_parts == {"gradients": 10}


def test_what_outlives_two_steps_is_no_activation():
    ledger = Ledger()
    ledger.open(10)
    ledger.phase("backward")
    for _ in range(3):
        ledger.pulse(1, "temporaries")
        ledger.end_step()
    ledger.pulse(1, "temporaries")
    assert ledger.report().peak_parts["other"] == 10


def test_the_timeline_keeps_the_peak_however_few_its_points():
    ledger = Ledger()
    for size in range(1000):
        ledger.pulse(size + 1, "temporaries")
    timeline = ledger.report(points=10).timeline
    assert len(timeline.total_bytes) == 10
    assert max(timeline.total_bytes) == 1000
    assert timeline.part_bytes["temporaries"] == timeline.total_bytes


def test_nothing_happened():
    assert Ledger().report().peak_bytes == 0


def test_unknown_words_are_refused():
    ledger = Ledger()
    with pytest.raises(ValueError):
        ledger.open(1, "weight")
    with pytest.raises(ValueError):
        ledger.phase("sideways")
