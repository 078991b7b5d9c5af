"""Vision models without timm: its counts, and refusals."""

import pytest

from workshop.facts import catalogue
from workshop.facts.vision import CoAtNetSpec, ViTSpec

TIMM = {
    "vit-ti-16": 5_717_416,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "vit-b-32": 88_224_232,
    "coatnet-0": 25_036_820,
    "coatnet-1": 42_225_776,
    "coatnet-2": 74_684_744,
    "coatnet-3": 166_966_264,
}


@pytest.mark.parametrize(("name", "count"), TIMM.items())
def test_counts(name, count):
    assert catalogue.vision_model(name).num_params == count


def test_tokens_are_patches_and_one_more():
    assert catalogue.vision_model("vit-b-16").num_tokens == 197


def test_patches_must_tile_the_image():
    with pytest.raises(ValueError, match="the nearest that would do is 224"):
        ViTSpec("v", 2, 64, 4, patch_size=16, image_size=230)


def test_image_is_halved_five_times():
    with pytest.raises(ValueError, match="not halved five times"):
        CoAtNetSpec("c", (1, 1, 1, 1, 1), (8, 8, 8, 32, 32), image_size=200)


def test_unknown_name_has_its_nearest():
    with pytest.raises(ValueError, match="did you mean 'coatnet-0'"):
        catalogue.vision_model("coatnet0")
