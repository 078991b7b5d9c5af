"""Scores and masks by hand against plain loops and torch's own pruning; whole models, layer by layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

from workshop.compress.hessian import Hessian
from workshop.compress.layer_by_layer import layer_by_layer, linears
from workshop.compress.prune import (
    apply_masks,
    keep_largest,
    magnitude,
    magnitude_masks,
    mask_of,
    prune_wanda,
    sparsity_of,
    two_of_four,
    two_of_four_plainly,
    wanda,
)
from workshop.models.gpt import GPT, GPTConfig

SHAPE = GPTConfig(
    vocab_size=64, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, intermediate_size=48
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(SHAPE)


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(64, (2, 16), generator=generator) for _ in range(count)]


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_the_lowest_go_and_their_number_is_exact(sparsity):
    score = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    for by_row in (False, True):
        mask = keep_largest(score, sparsity, by_row=by_row)
        for kept, of in zip(mask, score, strict=True) if by_row else [(mask, score)]:
            assert int((~kept).sum()) == round(sparsity * of.numel())
            if 0 < sparsity < 1:
                assert of[kept].min() > of[~kept].max()


def test_equal_scores_still_give_the_exact_number():
    score = torch.tensor([[1.0, 1.0, 1.0, 1.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0, 3.0]])
    wanted = [[True, True, False, False, True, False], [True, True, True, False, False, False]]
    assert keep_largest(score, 0.5, by_row=True).tolist() == wanted


def test_magnitude_is_torchs_own():
    linear = nn.Linear(24, 16, bias=False)
    mask = mask_of(magnitude(linear.weight), 0.4, "layer", "unstructured")
    torch_prune.l1_unstructured(linear, "weight", amount=0.4)
    assert torch.equal(mask, linear.weight_mask.bool())


def test_global_is_torchs_own(model):
    masks = magnitude_masks(model, 0.3, "global")
    torch_prune.global_unstructured(
        [(linear, "weight") for linear in linears(model).values()], torch_prune.L1Unstructured, amount=0.3
    )
    for name, linear in linears(model).items():
        assert torch.equal(masks[name], linear.weight_mask.bool()), name


def test_two_of_four_is_the_plain_loop_ties_included():
    generator = torch.Generator().manual_seed(2)
    for score in (
        torch.rand(7, 32, generator=generator),
        torch.randint(3, (50, 16), generator=generator).float(),
        torch.zeros(2, 8),
    ):
        mask = two_of_four(score)
        assert torch.equal(mask, two_of_four_plainly(score))
        assert mask.reshape(-1, 4).sum(-1).eq(2).all()


def test_two_of_four_is_torchs_own():
    from torch.ao.pruning import WeightNormSparsifier

    linear = nn.Sequential(nn.Linear(32, 8, bias=False))
    mask = two_of_four(magnitude(linear[0].weight))
    sparsifier = WeightNormSparsifier(sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2)
    sparsifier.prepare(linear, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    sparsifier.squash_mask()
    assert torch.equal(mask, linear[0].weight != 0)


def test_wanda_prefers_a_small_weight_on_a_loud_input():
    weight = torch.tensor([[3.0, 1.0, -2.0, 0.5]])
    norms = torch.tensor([0.1, 1.0, 1.0, 10.0])
    assert two_of_four(magnitude(weight)).tolist() == [[True, False, True, False]]
    assert two_of_four(wanda(weight, norms)).tolist() == [[False, False, True, True]]


def test_the_hessian_is_the_mean_of_outer_products_over_all_batches():
    torch.manual_seed(0)
    linear, inputs = nn.Linear(6, 2), torch.randn(4, 5, 6)
    with Hessian(linear) as seen:
        for part in inputs:
            linear(part)
    linear(inputs)  # no longer watched
    flat = inputs.flatten(0, 1)
    torch.testing.assert_close(seen.matrix, flat.T @ flat / 20)
    torch.testing.assert_close(seen.input_norms, flat.square().mean(0).sqrt())


def test_layer_by_layer_sees_what_pruned_layers_before_it_make(model):
    """The last layer's inputs, when the earlier ones were emptied, are those of the emptied model."""
    tokens = batches(1)
    for number, seen in enumerate(layer_by_layer(model, tokens)):
        if number < 2:
            for hessian in seen.values():
                hessian.linear.weight.data.zero_()
        else:
            found = seen["model.layers.2.self_attn.q_proj"].matrix
    with Hessian(model.model.layers[2].self_attn.q_proj) as whole, torch.no_grad():
        model(tokens[0])
    torch.testing.assert_close(found, whole.matrix)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_wanda_within_rows_and_two_of_four(model):
    before = {name: linear.weight.detach().clone() for name, linear in linears(model).items()}
    masks = prune_wanda(model, batches(), 0.5, "2:4")
    assert set(masks) == set(before)
    assert sparsity_of(model) == 0.5
    for name, linear in linears(model).items():
        assert torch.equal(linear.weight, before[name] * masks[name])  # what stays is not changed
        assert masks[name].reshape(-1, 4).sum(-1).eq(2).all()


def test_wanda_moves_a_layers_outputs_less_than_magnitude():
    torch.manual_seed(0)
    linear = nn.Linear(64, 32, bias=False)
    inputs = torch.randn(500, 64) * torch.logspace(-1, 1, 64)[torch.randperm(64)]
    with Hessian(linear) as seen:
        linear(inputs)
    wanted, errors = linear(inputs), {}
    for name, score in (
        ("magnitude", magnitude(linear.weight)),
        ("wanda", wanda(linear.weight, seen.input_norms)),
    ):
        pruned = linear.weight * mask_of(score, 0.5, "row", "unstructured")
        errors[name] = (inputs @ pruned.T - wanted).square().mean().item()
    assert errors["wanda"] < 0.5 * errors["magnitude"]


def test_apply_masks_leaves_embedding_head_and_norms(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    apply_masks(model, magnitude_masks(model, 0.6, "layer"))
    for name, value in model.state_dict().items():
        inner = ".layers." in name and name.endswith("proj.weight")
        assert torch.equal(value, state[name]) is not inner
    assert abs(sparsity_of(model) - 0.6) < 0.01


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda m: magnitude_masks(m, 1.5), "share of zeros"),
        (lambda m: magnitude_masks(m, 0.5, "globe"), "unknown scope 'globe'"),
        (lambda m: magnitude_masks(m, 0.6, "layer", "2:4"), "not 0.6"),
        (lambda m: magnitude_masks(m, 0.5, "global", "2:4"), "neighbours"),
        (lambda m: wanda(torch.ones(2, 4), torch.ones(2)), "one for each input"),
        (lambda m: two_of_four(torch.ones(2, 6)), "groups of four"),
        (lambda m: list(layer_by_layer(m, [])), "no batches"),
        (lambda m: Hessian(nn.Linear(2, 2)).matrix, "no inputs"),
    ],
)
def test_errors_say_what_to_do(model, attempt, said):
    with pytest.raises(ValueError, match=said):
        attempt(model)
