"""The mixture of experts: transformers' numbers, capacity by hand, balance at its two ends."""

import pytest
import torch

from workshop.models.gpt import GPT, GPTConfig
from workshop.models.moe import MoE, MoEConfig, balance_of, with_experts

CONFIG = MoEConfig(hidden_size=32, intermediate_size=48, num_experts=4, top_k=2)


def test_equal_to_transformers_and_loads_both_ways():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    ours = MoE(CONFIG)
    theirs = MixtralSparseMoeBlock(
        MixtralConfig(hidden_size=32, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2)
    )
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 8, 32)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=1e-5)
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-6, rtol=1e-5)


def test_all_experts_with_equal_weight_are_their_mean():
    torch.manual_seed(0)
    config = MoEConfig(hidden_size=32, intermediate_size=48, num_experts=4, top_k=4)
    mixture = MoE(config)
    torch.nn.init.zeros_(mixture.gate.weight)
    x = torch.randn(1, 5, 32)
    each = [mixture.experts(x[0].repeat(4, 1), [5, 5, 5, 5]).view(4, 5, 32)[i] for i in range(4)]
    torch.testing.assert_close(mixture(x)[0], torch.stack(each).mean(0))


def test_capacity_drops_the_last_to_come_and_first_choices_come_first():
    config = MoEConfig(hidden_size=32, intermediate_size=48, num_experts=4, top_k=2, capacity_factor=1.0)
    router = MoE(config).gate
    assert config.capacity(4) == 2
    expert = torch.tensor([[1, 0], [0, 3], [0, 3], [3, 1]])
    # expert 0: first choices of tokens 1 and 2; the second choice of token 0 is one too many.
    # expert 3: first choice of token 3, second of token 1; that of token 2 is one too many.
    assert router.within_capacity(expert).tolist() == [
        [True, False],
        [True, True],
        [True, False],
        [True, True],
    ]


def test_a_dropped_token_gets_nothing():
    torch.manual_seed(0)
    mixture = MoE(MoEConfig(32, 48, num_experts=4, top_k=1, capacity_factor=1.0))
    with torch.no_grad():
        mixture.gate.weight[0] += 0.1
    out = mixture(torch.randn(1, 64, 32) + 1)  # nearly all want expert 0, which takes 64 / 4
    taken = mixture.routing.kept.squeeze(-1)
    assert torch.bincount(mixture.routing.expert[taken].flatten()).tolist()[0] == 16 <= int(taken.sum()) < 40
    assert (out[0, ~taken] == 0).all()
    assert (out[0, taken] != 0).any(-1).all()


def test_balance_is_one_when_even_and_the_number_of_experts_when_one_does_all():
    router = MoE(MoEConfig(32, 48, num_experts=4, top_k=1)).gate
    even = torch.eye(4).repeat(8, 1)
    assert router.balance(even, even.argmax(-1, keepdim=True)).item() == pytest.approx(1)
    one = torch.eye(4)[torch.zeros(32, dtype=torch.long)]
    assert router.balance(one, one.argmax(-1, keepdim=True)).item() == pytest.approx(4)


def test_the_balance_loss_evens_out_a_router_that_prefers_one():
    torch.manual_seed(0)
    router = MoE(CONFIG).gate
    x = torch.randn(256, 32) + 1
    with torch.no_grad():
        router.weight[0] += 0.05  # expert 0 is everybody's first choice
    before = router.shares(router(x).expert).max().item()
    optimizer = torch.optim.Adam(router.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        router(x).balance.backward()
        optimizer.step()
    after = router.shares(router(x).expert).max().item()
    assert before > 0.4 > 0.3 > after


def test_in_a_gpt():
    torch.manual_seed(0)
    shape = GPTConfig(64, 32, 2, 4, 2, 48)
    model = with_experts(GPT(shape), CONFIG)
    tokens = torch.randint(64, (2, 8))
    (model(tokens, tokens) + 0.01 * balance_of(model)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_wrong_shapes_are_told():
    with pytest.raises(ValueError, match="top_k = 5: a token uses between 1 and 4 experts"):
        MoEConfig(num_experts=4, top_k=5)
    for factor, share in ((-1, "0%"), (0.75, "75%")):
        with pytest.raises(ValueError, match=f"capacity_factor = {factor}: the 8 experts .* take {share} of"):
            MoEConfig(capacity_factor=factor)
    with pytest.raises(ValueError, match="the experts are 256 wide, the model is 32"):
        with_experts(GPT(GPTConfig(64, 32, 2, 4, 2, 48)), MoEConfig())
    with pytest.raises(ValueError, match="has no mixture of experts"):
        balance_of(torch.nn.Linear(2, 2))
