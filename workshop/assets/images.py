"""Small grey images with labels, as numpy arrays: Fashion-MNIST, and 5,000 handwritten digits.

Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, arXiv 1708.07747) was made in the shape of MNIST and to be harder.
Its 60,000 images make an epoch that takes a while on a laptop, so lessons take a part. The format is IDX: a
header of big-endian numbers, then bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workshop.assets.store import folder
from workshop.facts.checks import check_choice

NAMES = ("fashion-mnist", "digits-5k")
PARTS = ("train", "test")
DIGITS_TEST = 5  # every fifth digit of each class is for testing

Images = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def load(name: str = "fashion-mnist", part: str = "train") -> Images:
    """Images (N, 28, 28) uint8 and labels (N,) uint8, 0 to 9.

    ``fashion-mnist`` has 60,000 to train and 10,000 to test, ``digits-5k`` 4,000 and 1,000.

    Raises:
        ValueError: no such set, or no such part.
        Unavailable: it is not here and cannot be fetched; the text names what to take instead.
    """
    check_choice("images", name, NAMES)
    check_choice("part", part, PARTS)
    there = folder(name)
    return _fashion(there, part) if name == "fashion-mnist" else _digits(there, part)


def _fashion(there: Path, part: str) -> Images:
    stem = {"train": "train", "test": "t10k"}[part]
    x = _idx(there / f"{stem}-images-idx3-ubyte.gz")
    y = _idx(there / f"{stem}-labels-idx1-ubyte.gz")
    return x, y


def _idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, 8 for uint8, the number of dims, each dim in 4 bytes, the data."""
    raw = gzip.decompress(path.read_bytes())
    num_dims = raw[3]
    shape = np.frombuffer(raw, ">u4", num_dims, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * num_dims).reshape(shape).copy()


def _digits(there: Path, part: str) -> Images:
    """784 grey values and the label in each line, ordered by class: the test part is taken evenly."""
    with gzip.open(there / "mnist_5k.csv.gz", "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, dtype=np.uint8, delimiter=",")
    test = np.arange(len(rows)) % DIGITS_TEST == 0
    chosen = rows[test if part == "test" else ~test]
    return chosen[:, :-1].reshape(-1, 28, 28).copy(), chosen[:, -1].copy()
