"""Our ViT is transformers': same weights, same logits, same gradients, both ways."""

import pytest
import torch

from workshop.facts import catalogue
from workshop.facts.vision import ViTSpec
from workshop.models.vit import ViT

SPEC = ViTSpec("small", 2, 48, 4, patch_size=7, image_size=28, num_classes=10, channels=1)


def twin():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=28,
        patch_size=7,
        num_channels=1,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.ViTForImageClassification(config).eval()
    if "vit.layers.0.attention.q_proj.weight" not in model.state_dict():
        pytest.skip("this transformers names a ViT's weights otherwise")
    return model


def noisy(model):
    """Biases and norms too, so that none of them can be left out."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_weights_of_transformers_load_and_give_the_same_logits():
    theirs, ours = noisy(twin()), ViT(SPEC).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-4, atol=1e-5)


def test_our_weights_load_into_transformers():
    theirs, ours = twin(), noisy(ViT(SPEC)).eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(theirs(images).logits, ours(images), rtol=1e-4, atol=1e-5)


def test_loss_and_gradients_equal_those_of_transformers():
    theirs, ours = noisy(twin()), ViT(SPEC)
    ours.load_state_dict(theirs.state_dict())
    images, labels = torch.randn(3, 1, 28, 28), torch.randint(10, (3,))
    loss = ours(images, labels)
    expected = torch.nn.functional.cross_entropy(theirs(images).logits, labels)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    yours = dict(theirs.named_parameters())
    for name, mine in ours.named_parameters():
        torch.testing.assert_close(mine.grad, yours[name].grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["vit-ti-16", "vit-b-16", "vit-b-32", "vit-l-16", "vit-h-14"])
def test_the_model_has_the_parameters_of_its_spec(name):
    spec = catalogue.vision_model(name)
    with torch.device("meta"):
        model = ViT(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.num_params


@pytest.mark.parametrize(("name", "millions"), [("vit-b-16", 86), ("vit-l-16", 307), ("vit-h-14", 632)])
def test_as_many_parameters_as_the_paper_says(name, millions):
    """arXiv 2010.11929, table 1; what a head of another number of classes changes is below 1.5 %."""
    assert catalogue.vision_model(name).num_params == pytest.approx(millions * 1e6, rel=0.015)


def test_pieces_are_the_whole_model():
    model = ViT(SPEC)
    held = [p for piece in model.pieces() for name in piece for p in model.get_submodule(name).parameters()]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert len(model.pieces()) == 1 + 2 + 1


def test_an_image_of_another_size_is_refused_with_its_shape():
    with pytest.raises(ValueError, match=r"takes images \(batch, 1, 28, 28\), and got \(3, 1, 32, 32\)"):
        ViT(SPEC)(torch.randn(3, 1, 32, 32))


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="hidden_size 50 does not give 4 heads"):
        ViT(ViTSpec("v", 1, 50, 4))
