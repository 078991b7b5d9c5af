"""What a cut model saves, any other layout takes up, tied embedding and moments included."""

import pytest

from tests.train.test_traffic_by_axis import MODEL
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.train import train

LAYOUTS = {
    "one": {},
    "tensor x shard": {"tensor": 2, "shard": 2, "zero": 3},
    "pipeline x tensor": {"pipeline": 2, "tensor": 2},
    "interleaved": {"pipeline": 2, "virtual_stages": 2},
}


def run_of(name):
    return Run(MODEL, "this-machine", Layout(**LAYOUTS[name], precision="fp32"), 1, 32, global_batch=8)


@pytest.fixture(scope="module")
def unbroken():
    return train(run_of("one"), num_steps=4, measured=False).losses


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [("tensor x shard", "one"), ("one", "pipeline x tensor"), ("interleaved", "tensor x shard")],
)
def test_a_checkpoint_goes_from_layout_to_layout(saved, resumed, unbroken, tmp_path):
    first = train(run_of(saved), folder=tmp_path, num_steps=2, save_every=2, measured=False)
    rest = train(run_of(resumed), folder=tmp_path, num_steps=4, measured=False)
    assert (rest.first_step, len(rest.losses)) == (2, 2)
    assert (*first.losses, *rest.losses) == pytest.approx(unbroken, abs=1e-5)


def test_a_norm_that_nobody_asked_for_is_not_logged(tmp_path):
    train(run_of("one"), folder=tmp_path, num_steps=1, clip_norm=0.0, measured=False)
    assert "gradient_norm" not in (tmp_path / "log.jsonl").read_text()
    train(run_of("one"), folder=tmp_path, num_steps=2, clip_norm=1.0, measured=False)
    assert '"gradient_norm": 0.0' not in (tmp_path / "log.jsonl").read_text()
    assert "gradient_norm" in (tmp_path / "log.jsonl").read_text()
