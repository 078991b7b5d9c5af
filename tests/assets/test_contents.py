"""What the assets hold, read by the functions that lessons call. These fetch what is not in the cache yet."""

from collections import Counter

import numpy as np
import pytest

from workshop.assets import images, questions, text


def test_fashion_mnist():
    x, y = images.load("fashion-mnist", "train")
    assert x.shape == (60_000, 28, 28)
    assert x.dtype == y.dtype == np.uint8
    assert set(Counter(y.tolist()).values()) == {6_000}
    assert abs(x.mean() / 255 - 0.2860) < 1e-4
    x, y = images.load("fashion-mnist", "test")
    assert x.shape == (10_000, 28, 28)
    assert set(Counter(y.tolist()).values()) == {1_000}
    x[0, 0, 0] = 1  # the caller's own


def test_digits():
    parts = {part: images.load("digits-5k", part) for part in ("train", "test")}
    for part, each_class in (("train", 400), ("test", 100)):
        x, y = parts[part]
        assert x.shape == (10 * each_class, 28, 28)
        assert set(Counter(y.tolist()).values()) == {each_class}
    train, test = ({image.tobytes() for image in parts[part][0]} for part in ("train", "test"))
    assert not train & test


@pytest.mark.parametrize("wrong", [("cifar", "train"), ("digits-5k", "valid")])
def test_unknown_images(wrong):
    with pytest.raises(ValueError, match=wrong[0] if wrong[0] == "cifar" else wrong[1]):
        images.load(*wrong)


def test_addresses():
    speeches = text.load("sotu")
    assert len(speeches) == 233
    assert sum(map(len, speeches.values())) == 10_760_042
    assert list(speeches) == sorted(speeches)
    assert speeches["1863_abraham_lincoln_r"].startswith("Fellow-Citizens of the Senate")


def test_the_manual_needs_nothing(empty_cache):
    topics = text.load("manual")
    assert len(topics) > 50
    assert sum(map(len, topics.values())) > 300_000


@pytest.mark.parametrize(("load", "at_least"), [(questions.load, 5_300), (questions.sms_spam, 4_400)])
def test_no_text_is_in_both_halves(load, at_least):
    split = load(num_test=400)
    train, test = ({example.text.lower() for example in part} for part in (split.train, split.test))
    assert not train & test
    assert len(train) + len(test) == len(split.train) + len(split.test) >= at_least
    assert len(test) == 400
    assert {example.label for example in (*split.train, *split.test)} == set(split.labels)
    assert load(num_test=400) == split


def test_the_file_itself_would_leak():
    from workshop.assets.store import folder

    lines = (folder("questions") / "question_labels.txt").read_text("utf-8", errors="replace").splitlines()
    assert len(lines) == 15_452
    assert len({line.lower() for line in lines}) < 5_500


def test_too_many_test_questions():
    with pytest.raises(ValueError, match=r"num_test = 9999, and there are 5,\d+ texts"):
        questions.load(num_test=9999)
