"""Cut models are smaller and give the masked model's outputs; what goes is what adds least."""

import copy

import pytest
import torch
from torch import nn

from workshop.compress.layer_by_layer import linears
from workshop.compress.prune_structured import choose, column_scores, cut_structures, highest, mask_structures
from workshop.models.gpt import GPT, GPTConfig


def gpt():
    return GPT(
        GPTConfig(
            vocab_size=64, hidden_size=32, num_layers=2, num_heads=8, num_kv_heads=4, intermediate_size=48
        )
    )


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=48, attention_bias=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def logits(model, tokens):
    with torch.no_grad():
        found = model(tokens)
    return found if isinstance(found, torch.Tensor) else found.logits


@pytest.mark.parametrize("build", [gpt, llama])
def test_the_cut_model_is_smaller_and_says_what_the_masked_one_says(build):
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():  # larger than at birth: what is cut would be missed
        parameter.data += 0.2 * torch.randn_like(parameter)
    tokens = torch.randint(64, (2, 12))
    kept = choose(model, [tokens], ffn=0.25, heads=0.5)
    masked = mask_structures(copy.deepcopy(model), kept)
    cut = cut_structures(copy.deepcopy(model), kept)
    assert [len(stays.neurons) for stays in kept] == [36, 36]
    assert [len(stays.heads) for stays in kept] == [2, 2]
    torch.testing.assert_close(logits(cut, tokens), logits(masked, tokens), rtol=1e-4, atol=1e-5)
    assert (logits(cut, tokens) - logits(model, tokens)).abs().max() > 1e-2
    shapes = {name.rsplit(".", 1)[1]: linear.weight.shape for name, linear in linears(cut).items()}
    assert shapes["gate_proj"] == shapes["up_proj"] == (36, 32)
    assert shapes["down_proj"] == (32, 36)
    assert shapes["q_proj"] == (16, 32)
    assert shapes["k_proj"] == shapes["v_proj"] == (8, 32)
    assert shapes["o_proj"] == (32, 16)


def test_a_model_from_the_cut_config_takes_the_cut_weights():
    torch.manual_seed(0)
    model = llama().eval()
    tokens = torch.randint(64, (2, 12))
    cut = cut_structures(model, choose(model, [tokens], ffn=0.5, heads=0.25))
    again = type(cut)(copy.deepcopy(cut.config)).eval()
    again.load_state_dict(cut.state_dict())
    torch.testing.assert_close(logits(again, tokens), logits(cut, tokens))


def test_the_least_useful_neuron_and_head_go_first():
    torch.manual_seed(0)
    model = gpt().eval()
    model.model.layers[0].mlp.down_proj.weight.data[:, 7] = 0
    model.model.layers[1].self_attn.o_proj.weight.data[:, 8:16] = 0  # two query heads of width 4: kv head 1
    kept = choose(model, [torch.randint(64, (2, 12))], ffn=1 / 48, heads=0.25)
    assert 7 not in kept[0].neurons
    assert kept[1].heads.tolist() == [0, 2, 3]


def test_a_columns_score_is_what_it_adds_to_the_output():
    """Mean square of one input's share of the output, by hand."""
    torch.manual_seed(0)
    linear, inputs = nn.Linear(6, 5, bias=False), torch.randn(50, 6)
    norms = inputs.square().mean(0).sqrt()
    score = column_scores(linear, norms)
    for column in range(6):
        added = torch.outer(inputs[:, column], linear.weight[:, column])
        torch.testing.assert_close(score[column], added.square().sum(-1).mean().sqrt())
    pairs = column_scores(linear, norms, width=2)
    torch.testing.assert_close(pairs, score.unflatten(0, (-1, 2)).square().sum(-1).sqrt())


def test_training_goes_on_after_the_cut():
    torch.manual_seed(0)
    model = gpt()
    tokens = torch.randint(64, (2, 12))
    cut_structures(model, choose(model, [tokens], ffn=0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model(tokens, tokens)
    first.backward()
    optimizer.step()
    assert model(tokens, tokens) < first


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="keep at least one"):
        highest(torch.ones(4), 0)
    with pytest.raises(ValueError, match="keep at least one"):
        choose(gpt(), [torch.randint(64, (1, 4))], heads=1.0)
