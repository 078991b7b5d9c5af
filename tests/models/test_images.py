"""Pixels are repeated and framed, never invented."""

import numpy as np
import pytest
import torch

from workshop.models.images import to_images


def test_same_side_is_scaled_only():
    pixels = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    torch.testing.assert_close(to_images(pixels, 2), torch.tensor([[[[-1.0, 1.0], [-0.6, -0.2]]]]))


def test_a_larger_side_repeats_and_frames():
    pixels = np.full((2, 28, 28), 255, dtype=np.uint8)
    images = to_images(pixels, 64)
    assert images.shape == (2, 1, 64, 64)
    assert (images[:, :, 4:60, 4:60] == 1).all()
    assert int((images == 1).sum()) == 2 * 56 * 56
    assert set(images.unique().tolist()) == {-1.0, 1.0}


def test_a_smaller_side_is_refused():
    with pytest.raises(ValueError, match="images of side 28 do not fit side 16"):
        to_images(np.zeros((1, 28, 28), np.uint8), 16)
