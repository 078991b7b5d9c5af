"""Our GPT is a Llama: same weights, same logits, both ways."""

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workshop.models import gpt
from workshop.models.gpt import GPT, GPTConfig

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 6,
    "num_kv_heads": 2,
    "intermediate_size": 80,
}


def twin(tied: bool):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=80,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-6,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_llama_load_and_give_the_same_logits(tied):
    theirs, ours = twin(tied), GPT(GPTConfig(**SHAPE, tied=tied)).eval()
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(0, 97, (2, 19))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_our_weights_load_into_llama(tied):
    theirs, ours = twin(tied), GPT(GPTConfig(**SHAPE, tied=tied)).eval()
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(0, 97, (2, 19))
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-5)


def test_loss_and_gradients_equal_those_of_llama():
    theirs, ours = twin(False).train(), GPT(GPTConfig(**SHAPE))
    ours.load_state_dict(theirs.state_dict())
    tokens, targets = torch.randint(0, 97, (2, 19)), torch.randint(0, 97, (2, 19))
    loss = ours(tokens, targets)
    expected = torch.nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    yours = dict(theirs.named_parameters())
    for name, mine in ours.named_parameters():
        torch.testing.assert_close(mine.grad, yours[name].grad, rtol=1e-3, atol=1e-6)


def test_recompute_changes_no_gradient():
    model = GPT(GPTConfig(**SHAPE))
    tokens = torch.randint(0, 97, (2, 19))
    model(tokens, tokens).backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.model.recompute = True
    model(tokens, tokens).backward()
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_later_tokens_do_not_change_earlier_logits():
    model = GPT(GPTConfig(**SHAPE)).eval()
    tokens = torch.randint(0, 97, (1, 19))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 97
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])


def test_tied_means_one_matrix():
    model = GPT(GPTConfig(**SHAPE, tied=True))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_impossible_heads_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="hidden_size 50 does not give 6 heads"):
        GPTConfig(hidden_size=50, num_heads=6)
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        GPTConfig(hidden_size=48, num_heads=6, num_kv_heads=4)


def test_it_can_be_read_in_one_sitting():
    source = Path(gpt.__file__).read_text()
    assert len(source.splitlines()) < 240


@pytest.mark.parametrize(
    ("device", "dtype", "copied"),
    [("cuda", torch.float32, True), ("cuda", torch.bfloat16, False), ("cpu", torch.float32, False)],
)
def test_shared_heads_are_copied_only_where_no_fused_kernel_takes_them(monkeypatch, device, dtype, copied):
    asked = []
    monkeypatch.setattr(
        gpt.F, "scaled_dot_product_attention", lambda q, k, v, **how: asked.append(k.shape) or q
    )
    with FakeTensorMode():
        query = torch.empty(2, 8, 16, 4, device=device, dtype=dtype)
        key = torch.empty(2, 2, 16, 4, device=device, dtype=dtype)
        gpt.attend(query, key, key, is_causal=True)
    assert asked == [(2, 8, 16, 4) if copied else (2, 2, 16, 4)]


def test_attention_over_copied_heads_is_that_over_shared_ones():
    query, key, value = torch.randn(2, 8, 16, 4), torch.randn(2, 2, 16, 4), torch.randn(2, 2, 16, 4)
    copies = [x.repeat_interleave(4, dim=1) for x in (key, value)]
    torch.testing.assert_close(
        gpt.attend(query, key, value, is_causal=True), gpt.attend(query, *copies, is_causal=True)
    )
