"""Days, money and energy."""

import pytest

from workshop.facts.catalogue import cluster, model
from workshop.predict.cost import Terms, cost_of_seconds, training_cost, training_cost_of_model

H100S = cluster("1024xH100")


def test_seventy_billion_on_fifteen_trillion_tokens_takes_144_days():
    cost = training_cost(70e9, 15e12, H100S, 0.5)
    assert cost.days == pytest.approx(144, abs=0.2)
    assert cost.device_hours == pytest.approx(cost.days * 24 * 1024)
    assert cost.flops == pytest.approx(6.3e24)


def test_money_and_energy_follow_the_hours():
    cost = training_cost(70e9, 15e12, H100S, 0.5, Terms(price_per_hour=2.0, pue=1.5, load=1.0))
    assert cost.money == pytest.approx(2 * cost.device_hours)
    assert cost.energy_kwh == pytest.approx(cost.device_hours * 0.7 * 1.5)
    assert training_cost(70e9, 15e12, H100S, 0.5).money is None
    assert "days" in str(cost)


def test_lost_time_is_added():
    assert training_cost(7e9, 1e12, H100S, 0.4, Terms(lost=0.1)).seconds == pytest.approx(
        training_cost(7e9, 1e12, H100S, 0.4).seconds / 0.9
    )


def test_attention_makes_a_model_dearer_than_six_per_parameter():
    spec = model("llama-3-8b")
    exact = training_cost_of_model(spec, 8192, 1e12, H100S, 0.4)
    assert 1.0 < exact.seconds / training_cost(spec.num_params, 1e12, H100S, 0.4).seconds < 1.25


def test_a_cluster_kept_busy():
    assert cost_of_seconds(3600, H100S).device_hours == 1024


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((70e9, 15e12, H100S, 50), "did you mean 0.5"),
        ((70e9, 15e12, H100S, 0), "between 0 and 1"),
        ((-1, 15e12, H100S, 0.5), "params is -1"),
        ((70e9, 0, H100S, 0.5), "tokens is 0"),
    ],
)
def test_errors_speak(values, words):
    with pytest.raises(ValueError, match=words):
        training_cost(*values)
