"""SparseGPT by blocks equals the plain loop, the closed form for one column, and beats masks alone."""

import pytest
import torch

from workshop.compress.hessian import inverse_factor
from workshop.compress.layer_by_layer import linears
from workshop.compress.prune import magnitude, mask_of, sparsity_of
from workshop.compress.sparsegpt import prune_matrix, prune_matrix_plainly, prune_sparsegpt
from workshop.models.gpt import GPT, GPTConfig


def example(rows=12, columns=40, tokens=300):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(tokens, columns, generator=generator) @ mixing  # features that hang together
    return torch.randn(rows, columns, generator=generator), inputs


def hessian_of(inputs):
    return inputs.T @ inputs / len(inputs)


def test_the_factor_gives_the_inverse_and_each_smaller_inverse():
    _, inputs = example()
    hessian = hessian_of(inputs)
    factor = inverse_factor(hessian, damping=0.01)
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(40)
    torch.testing.assert_close(factor.T @ factor, damped.inverse(), rtol=1e-3, atol=1e-4)
    for first in (1, 17):
        rest = damped[first:, first:].inverse()
        torch.testing.assert_close(
            factor[first, first:] * factor[first, first], rest[0], rtol=1e-3, atol=1e-4
        )


def test_a_silent_feature_does_not_break_it():
    weight, inputs = example()
    inputs[:, 3] = 0
    assert prune_matrix(weight, hessian_of(inputs)).isfinite().all()


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
@pytest.mark.parametrize("block", [8, 16, 40])
def test_by_blocks_equals_the_plain_loop(pattern, block):
    weight, inputs = example()
    given = weight.clone()
    hessian = hessian_of(inputs)
    plain = prune_matrix_plainly(weight, hessian, 0.5, pattern, block)
    quick = prune_matrix(weight, hessian, 0.5, pattern, block)
    torch.testing.assert_close(quick, plain, rtol=1e-3, atol=1e-3)
    assert torch.equal(quick == 0, plain == 0)
    assert torch.equal(weight, given)
    assert (quick == 0).float().mean() == 0.5
    if pattern == "2:4":
        assert (quick.reshape(-1, 4) == 0).sum(-1).eq(2).all()


def test_one_column_gone_is_least_squares_on_the_rest():
    """Only the first column goes: what the others get is the regression of its part on them."""
    torch.manual_seed(0)
    inputs = (torch.randn(400, 5) @ torch.randn(5, 5)).double().float()
    weight = torch.tensor([[0.001, 5.0, -4.0, 3.0, 6.0]])
    pruned = prune_matrix(weight, hessian_of(inputs), 0.2, "unstructured", block=8)
    wanted = weight[:, 1:] + 0.001 * torch.linalg.lstsq(inputs[:, 1:], inputs[:, :1]).solution.T
    assert pruned[0, 0] == 0
    torch.testing.assert_close(pruned[:, 1:], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pattern", ["unstructured", "2:4"])
def test_outputs_move_less_than_under_the_same_zeros_without_correction(pattern):
    weight, inputs = example()
    pruned = prune_matrix(weight, hessian_of(inputs), 0.5, pattern)
    masked = weight * mask_of(magnitude(weight), 0.5, "row", pattern)

    def error(other):
        return float((inputs @ (other - weight).T).square().mean())

    assert error(pruned) < 0.95 * error(masked)
    assert error(pruned) < 0.8 * error(weight * (pruned != 0))


def test_a_whole_model():
    torch.manual_seed(0)
    shape = GPTConfig(
        vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=48
    )
    model = GPT(shape)
    masks = prune_sparsegpt(model, [torch.randint(64, (4, 32))], 0.5, "2:4")
    assert sparsity_of(model) == 0.5
    for name, linear in linears(model).items():
        assert torch.equal(masks[name], linear.weight != 0)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="whole groups of four"):
        prune_matrix(torch.ones(2, 8), torch.eye(8), block=6)
    with pytest.raises(ValueError, match="not positive definite"):
        inverse_factor(-torch.eye(4))
