"""Losses against torch's own and the paper's limits; students that keep the teacher's tensors."""

import pytest
import torch
import torch.nn.functional as F

from workshop.compress.distill import (
    DistilLoss,
    Seen,
    cut_student,
    forward_kl,
    hidden_loss,
    keep_words,
    soft_loss,
    spread_layers,
)
from workshop.models.gpt import GPT, GPTConfig

SHAPE = GPTConfig(
    vocab_size=40, hidden_size=32, num_layers=6, num_heads=4, num_kv_heads=2, intermediate_size=48
)


def pair(words=11):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 5, words, generator=generator), 2 * torch.randn(3, 5, words, generator=generator)


def llama(tied=True):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=40, hidden_size=32, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=48, tie_word_embeddings=tied,
        )
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [1.0, 2.0, 7.0])
def test_the_divergence_is_torchs(temperature):
    student, teacher = pair()
    q, p = (F.log_softmax(x / temperature, -1).flatten(0, 1) for x in (student, teacher))
    forward = F.kl_div(q, p, log_target=True, reduction="batchmean")
    reverse = F.kl_div(p, q, log_target=True, reduction="batchmean")
    torch.testing.assert_close(forward_kl(student, teacher, temperature), forward)
    torch.testing.assert_close(soft_loss(student, teacher, temperature), temperature**2 * forward)
    if temperature < 5:  # hot distributions are nearly flat, and then both ways agree
        assert abs(forward - reverse) > 1e-2


def test_at_high_temperature_the_gradient_is_that_of_matching_logits():
    student, teacher = pair()
    student.requires_grad_()
    centred = [x.detach() - x.detach().mean(-1, keepdim=True) for x in (student, teacher)]
    matching = (centred[0] - centred[1]) / 11 / 15  # words, positions: arXiv 1503.02531, equation 4 times T^2
    errors = []
    for temperature in (1.0, 10.0, 100.0):
        (found,) = torch.autograd.grad(soft_loss(student, teacher, temperature), student)
        errors.append(float((found - matching).norm() / matching.norm()))
    assert errors[0] > 0.3
    assert 0.05 < errors[1] < 0.3
    assert errors[2] < 0.03


@pytest.mark.parametrize("temperature", [1.0, 4.0, 50.0])
def test_the_losss_gradient_is_t_times_the_difference_of_probabilities(temperature):
    student, teacher = pair()
    student.requires_grad_()
    soft_loss(student, teacher, temperature).backward()
    q, p = (F.softmax(x / temperature, -1) for x in (student, teacher))
    torch.testing.assert_close(student.grad, temperature * (q - p).detach() / 15, rtol=1e-3, atol=1e-5)


def test_a_perfect_student_has_no_loss_and_a_shift_of_logits_changes_nothing():
    student, teacher = pair()
    assert soft_loss(teacher, teacher).abs() < 1e-6
    torch.testing.assert_close(soft_loss(student + 3, teacher - 5), soft_loss(student, teacher))


def test_hidden_states_are_compared_by_angle():
    student, teacher = pair()
    target = torch.ones(15)
    wanted = F.cosine_embedding_loss(student.flatten(0, 1), teacher.flatten(0, 1), target)
    torch.testing.assert_close(hidden_loss(student, teacher), wanted)
    torch.testing.assert_close(hidden_loss(3 * student, teacher), wanted)


def test_distilberts_three_losses_add_up():
    student, teacher = pair()
    hidden = torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    targets = torch.randint(11, (3, 5))
    targets[0] = -100
    found = DistilLoss()(Seen(student, hidden[0]), Seen(teacher, hidden[1]), targets)
    labels = F.cross_entropy(student[1:].flatten(0, 1), targets[1:].flatten())
    wanted = 5 * soft_loss(student, teacher, 2.0) + 2 * labels + hidden_loss(*hidden)
    torch.testing.assert_close(found, wanted)
    only = DistilLoss(soft=0, labels=1, hidden=0)(Seen(student), Seen(teacher), targets)
    torch.testing.assert_close(only, labels)


def test_layers_are_spread_over_the_depth():
    assert spread_layers(30, 4) == (0, 10, 19, 29)
    assert spread_layers(12, 6)[0] == 0
    assert spread_layers(12, 6)[-1] == 11
    for depth in range(1, 31):
        layers = spread_layers(30, depth)
        assert len(set(layers)) == depth
        assert list(layers) == sorted(layers)


@pytest.mark.parametrize("build", [lambda: GPT(SHAPE), llama, lambda: llama(tied=False)])
def test_a_student_keeps_the_teachers_tensors(build):
    torch.manual_seed(0)
    teacher = build()
    student = cut_student(teacher, (0, 2, 5))
    theirs, mine = teacher.state_dict(), student.state_dict()
    assert len(student.model.layers) == 3
    for new, old in enumerate((0, 2, 5)):
        for name, value in teacher.model.layers[old].state_dict().items():
            assert torch.equal(mine[f"model.layers.{new}.{name}"], value)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        assert torch.equal(mine[name], theirs[name])
        assert mine[name].data_ptr() != theirs[name].data_ptr()
    tied = [m.lm_head.weight is m.model.embed_tokens.weight for m in (teacher, student)]
    assert tied[0] is tied[1]
    whole = cut_student(teacher, range(6))
    tokens = torch.randint(40, (2, 7))
    found, wanted = whole.eval()(tokens), teacher.eval()(tokens)
    if not isinstance(found, torch.Tensor):
        found, wanted = found.logits, wanted.logits
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("build", [lambda: GPT(SHAPE), llama, lambda: llama(tied=False)])
def test_a_model_with_fewer_words_says_the_same_of_them(build):
    torch.manual_seed(0)
    model = build().eval()
    tokens = torch.randint(40, (2, 7))
    words = torch.unique(torch.cat((tokens.flatten(), torch.tensor([1, 39]))))

    def logits(text):
        with torch.no_grad():
            found = model(text)
        return found if isinstance(found, torch.Tensor) else found.logits

    before = logits(tokens)
    keep_words(model, words)
    torch.testing.assert_close(logits(torch.searchsorted(words, tokens)), before[..., words])
    assert model.config.vocab_size == len(words)
    cut_student(model, (0, 5))  # a student can still be cut


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda: soft_loss(torch.ones(2, 3), torch.ones(2, 4)), "same vocabulary"),
        (lambda: soft_loss(torch.ones(2, 3), torch.ones(2, 3), 0.0), "temperature is 0"),
        (lambda: hidden_loss(torch.ones(2, 3), torch.ones(2, 4)), "project the student"),
        (lambda: spread_layers(4, 5), "5 layers"),
        (lambda: cut_student(GPT(SHAPE), (0, 0)), "each once"),
        (lambda: cut_student(GPT(SHAPE), (6,)), "0 to 5"),
        (lambda: keep_words(GPT(SHAPE), torch.tensor([3, 1])), "sorted"),
        (
            lambda: DistilLoss()(Seen(torch.ones(1, 2)), Seen(torch.ones(1, 2)), torch.zeros(1).long()),
            "pass both",
        ),
    ],
)
def test_errors_say_what_to_do(attempt, said):
    with pytest.raises(ValueError, match=said):
        attempt()
