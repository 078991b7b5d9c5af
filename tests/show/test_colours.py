"""Colours that stand beside each other in a picture are told apart by who sees no red or no green."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from workshop.show import lanes, parts, style

# Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE
# TVCG 15 (2009), the matrices of severity 1.0; they multiply linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
# sRGB to CIE XYZ under D65 (IEC 61966-2-1); distances are in CIE L*a*b*, where white and black are 100 apart.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
APART = 10.0
TOGETHER = {
    "ranks": style.RANK_COLOURS,
    "phases": tuple(style.PHASE_COLOURS.values()),
    "parts of memory": tuple(parts.PART_COLOURS.values()),
    "actions of a pipeline": tuple(lanes.ACTION_COLOURS.values()),
    "predicted, measured, limit": (style.PREDICTED, style.MEASURED, style.LIMIT),
}


def lab(colour: str, sight: Sequence[Sequence[float]]) -> np.ndarray:
    """L*a*b* of a hexadecimal colour as these eyes see it."""
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(np.asarray(sight) @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours: Sequence[str], sight: Sequence[Sequence[float]]) -> tuple[float, tuple[str, str]]:
    """The two colours that are hardest to tell apart, and their distance."""
    return min(
        (float(np.linalg.norm(lab(one, sight) - lab(other, sight))), (one, other))
        for one, other in combinations(colours, 2)
    )


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("group", TOGETHER)
def test_colours_of_one_picture_are_told_apart(group: str, sight: str) -> None:
    distance, pair = nearest(TOGETHER[group], SIGHT[sight])
    assert distance > APART, (pair, distance)


def test_red_and_green_of_the_same_light_are_found() -> None:
    red, green = "#C04040", "#5A8A00"
    assert nearest((red, green), SIGHT["all colours"])[0] > 60
    assert nearest((red, green), SIGHT["deuteranopia"])[0] < 30
