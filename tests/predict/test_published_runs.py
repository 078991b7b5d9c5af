"""Runs that happened, predicted again from facts alone."""

import pytest

from workshop.facts.training_runs import training_run, training_runs
from workshop.predict.flops import megatron_flops
from workshop.predict.published_runs import flops_per_token, reproduce, reproduce_all, reproduced_table


def test_bloom_takes_105_days_of_computing_and_took_117():
    again = reproduce("bloom-176b")
    assert again.days == pytest.approx(105.6, abs=0.1)
    assert again.deviation == pytest.approx(-0.10, abs=0.01)


def test_blooms_count_is_the_formula_its_authors_used():
    run = training_run("bloom-176b")
    assert flops_per_token(run) == pytest.approx(megatron_flops(run.spec, 2048, 1, recompute=True), rel=1e-6)
    assert flops_per_token(run, "model") < 0.8 * flops_per_token(run)


def test_llama_65b_takes_21_days():
    assert reproduce("llama-65b").days == pytest.approx(21, abs=0.3)


def test_llama_2_70b_takes_1720320_hours_at_the_share_of_its_predecessor():
    again = reproduce("llama-2-70b")
    assert again.published_hours == 1_720_320
    assert again.mfu == pytest.approx(reproduce("llama-65b").mfu)
    assert -0.10 < again.deviation < 0


def test_seventy_billion_on_1024_h100_take_144_days():
    assert reproduce("70b-on-1024").days == pytest.approx(144, abs=0.1)
    assert reproduce("70b-on-1024").off_by == "+0.0%"


@pytest.mark.parametrize("name", list(training_runs()))
def test_no_run_is_off_by_more_than_15_per_cent(name):
    again = reproduce(name)
    assert abs(again.deviation) < 0.15
    assert 0.3 < again.mfu < 0.6
    assert again.implied_mfu == pytest.approx(again.mfu * (1 + again.deviation))


def test_the_table_has_a_line_for_each_run_with_its_deviation():
    text = str(reproduced_table())
    assert len(reproduce_all()) == len(training_runs())
    for name in training_runs():
        assert name in text
    assert "105.6 days" in text
    assert "-10.2%" in text
    assert "1,599,651 h" in text
    assert str(reproduced_table((reproduce("opt-175b"),))).count("opt-175b") == 1


def test_an_unknown_run_is_named():
    with pytest.raises(ValueError, match="bloom-176b"):
        reproduce("blom-176b")
