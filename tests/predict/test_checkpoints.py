"""How large a checkpoint is."""

import pytest

from workshop.facts.catalogue import model
from workshop.predict.checkpoints import checkpoint_bytes, write_seconds


def test_blooms_checkpoint_was_2_3_tb():
    saved = checkpoint_bytes(model("bloom-176b").num_params, copy_bytes=2)
    assert saved.total / 2**40 == pytest.approx(2.3, rel=0.03)
    assert saved.copies / 2**30 == pytest.approx(329, rel=0.01)
    assert saved.total == saved.weights + saved.moments + saved.copies


def test_twelve_bytes_a_parameter():
    assert checkpoint_bytes(70e9).total == 12 * 70e9
    assert checkpoint_bytes(70e9, "sgd").total == 4 * 70e9
    assert checkpoint_bytes(70e9, "sgd-momentum").moments == 4 * 70e9
    assert checkpoint_bytes(70e9, "adamw-8bit").moments == 2 * 70e9
    assert checkpoint_bytes(70e9, "muon").moments == 4 * 70e9
    assert checkpoint_bytes(70e9).per_rank(1024) == pytest.approx(820e6, rel=0.01)


def test_writing_at_a_rate():
    assert write_seconds(4.87e12, 2e12) == pytest.approx(2.4, abs=0.1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checkpoint_bytes(0), "num_params is 0"),
        (lambda: checkpoint_bytes(1, "adma"), "unknown optimizer 'adma'; did you mean 'adam'"),
        (lambda: checkpoint_bytes(1).per_rank(0), "num_ranks is 0"),
        (lambda: write_seconds(1, 0), "bytes_per_second is 0"),
    ],
)
def test_errors_speak(call, words):
    with pytest.raises(ValueError, match=words):
        call()
