"""Tokens and parameters."""

import pytest

from workshop.predict.tokens import compute_optimal, fitted_loss, served_to_break_even, tokens_for_loss


def test_chinchilla_is_its_own_optimum():
    best = compute_optimal(6 * 70e9 * 1.4e12)  # Chinchilla: 70B on 1.4T tokens (arXiv 2203.15556)
    assert best.params == pytest.approx(70e9)
    assert best.tokens == pytest.approx(1.4e12)


def test_the_fitted_loss_of_chinchilla_and_gopher():
    # arXiv 2203.15556: Chinchilla (70B, 1.4T) beats Gopher (280B, 300B) at about the same FLOPs
    assert fitted_loss(70e9, 1.4e12) == pytest.approx(1.937, abs=0.005)
    assert fitted_loss(70e9, 1.4e12) < fitted_loss(280e9, 300e9)


def test_tokens_for_a_loss_is_the_inverse():
    assert tokens_for_loss(70e9, fitted_loss(70e9, 15e12)) == pytest.approx(15e12, rel=1e-6)
    with pytest.raises(ValueError, match="never reach.*larger model"):
        tokens_for_loss(1e9, 1.8)


def test_break_even():
    assert served_to_break_even((1e9, 40e9), (2e9, 15e9)) == pytest.approx(6 * 10e18 / 2e9)
    assert served_to_break_even((1e9, 1e9), (2e9, 15e9)) == 0
    with pytest.raises(ValueError, match="smaller one first"):
        served_to_break_even((2e9, 1e9), (1e9, 1e9))


@pytest.mark.parametrize(
    "call", [lambda: compute_optimal(0), lambda: fitted_loss(0, 1), lambda: fitted_loss(1, 0)]
)
def test_errors_speak(call):
    with pytest.raises(ValueError, match="is 0; it must be more than 0"):
        call()
