"""CoAtNet: as many parameters as recorded, the shapes of the paper's table, a bias that looks at offsets."""

import pytest
import torch

from workshop.facts import catalogue
from workshop.facts.vision import CoAtNetSpec
from workshop.models.coatnet import CoAtNet, MBConv, RelativeBias

SMALL = CoAtNetSpec("small", (2, 1, 1, 2, 1), (8, 8, 16, 32, 64), image_size=64, num_classes=10, channels=1)


@pytest.mark.parametrize("name", ["coatnet-0", "coatnet-1", "coatnet-2", "coatnet-3", "coatnet-4"])
def test_the_model_has_the_parameters_of_its_spec(name):
    """The spec's counts are timm's (tests/facts/test_vision.py), by part too."""
    spec = catalogue.vision_model(name)
    with torch.device("meta"):
        model = CoAtNet(spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == spec.num_params
    count = dict.fromkeys(spec.params_by_part(), 0)
    stages = [stage for stage in range(1, 5) for _ in range(spec.blocks[stage])]
    for part, module in [
        ("stem", model.stem),
        ("head", model.head),
        *(
            (f"stage {stage}", block)
            for stage, block in zip(stages, [*model.convolutions, *model.transformers], strict=True)
        ),
    ]:
        count[part] += sum(parameter.numel() for parameter in module.parameters())
    assert count == spec.params_by_part()


@pytest.mark.parametrize(
    ("name", "millions"),
    [("coatnet-0", 25), ("coatnet-1", 42), ("coatnet-2", 75), ("coatnet-3", 168), ("coatnet-4", 275)],
)
def test_as_many_parameters_as_the_paper_says(name, millions):
    """arXiv 2106.04803, the tables of results on ImageNet; norms and biases are left open there."""
    assert catalogue.vision_model(name).num_params == pytest.approx(millions * 1e6, rel=0.015)


def test_every_stage_halves_the_map():
    model, x, sides = CoAtNet(SMALL), torch.randn(2, 1, 64, 64), []
    for piece in model.pieces()[:-1]:
        for name in piece:
            x = model.get_submodule(name)(x)
        sides.append((x.shape[1], x.shape[-1]))
    assert sides == [(8, 32), (8, 16), (16, 8), (32, 4), (32, 4), (64, 2)]


def test_logits_and_loss():
    model = CoAtNet(SMALL)
    images, labels = torch.randn(4, 1, 64, 64), torch.randint(10, (4,))
    assert model(images).shape == (4, 10)
    model(images, labels).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_bias_depends_on_the_offset_alone():
    bias = RelativeBias(2, 3)
    torch.nn.init.normal_(bias.table)
    found = bias()
    assert found.shape == (2, 9, 9)
    # From (0, 0) to (1, 1), and from (1, 1) to (2, 2): the same; back again: another.
    assert torch.equal(found[:, 0, 4], found[:, 4, 8])
    assert not torch.equal(found[:, 0, 4], found[:, 4, 0])
    assert len(bias.offset.unique()) == 25


def test_attention_adds_the_bias_before_the_softmax():
    torch.manual_seed(0)
    attention = CoAtNet(SMALL).transformers[1].attention
    torch.nn.init.normal_(attention.bias.table)
    x = torch.randn(2, 16, 32)
    query, key, value = (project(x) for project in (attention.q_proj, attention.k_proj, attention.v_proj))
    scores = query @ key.transpose(1, 2) / 32**0.5 + attention.bias()[0]
    expected = attention.o_proj(scores.softmax(-1) @ value)
    torch.testing.assert_close(attention(x), expected, rtol=1e-4, atol=1e-5)


def test_an_mbconv_without_stride_keeps_its_input():
    block = MBConv(SMALL, 8, 8, 1)
    torch.nn.init.zeros_(block.project.weight)
    torch.nn.init.zeros_(block.project.bias)
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(block(x), x)
