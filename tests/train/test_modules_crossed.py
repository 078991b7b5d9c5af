"""How far `train(run)` walks: the modules that it enters where it is called, and on a rank.

A reader who follows the call through the code opens these files. Where it is called there are at most twelve, and
what a layout needs beyond them is named here, with the reason. A rank builds a model, cuts it, feeds it and
measures it: each of these is a room with files of its own, so its walk is longer. Its limit is the number
that it had when this test was written.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crossed import modules_crossed
from workshop import launch
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.site import current
from workshop.train import train
from workshop.train.launched import as_program

MOST = 12
ON_RANK, MEASURED = 19, 13  # of a model that is not cut; and of the room that measures
LAYOUTS = {
    "plain": (Layout(precision="fp32"), MOST),
    "DDP": (Layout(replicate=2, precision="fp32"), MOST),
    "FSDP2": (Layout(shard=2, zero=3), MOST),
    "tensor": (Layout(tensor=2, precision="fp32"), MOST + 1),  # whether the model divides
    "pipeline": (Layout(pipeline=2, precision="fp32"), MOST + 3),  # and whether there is such a schedule
}
PROGRAM = """
from tests.crossed import modules_crossed
from workshop.launch import report
from workshop.train.on_rank import train_on_rank

report(modules=modules_crossed(train_on_rank, run, settings, folder, measured))
"""


@pytest.fixture(autouse=True)
def nobodys_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = launch.Session.get()
    session.wait_ready()
    if session.gpus or current.EVERYONE.exists():
        pytest.skip("GPUs are leased and a site is read: more files")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WORKSHOP_SITE", raising=False)


def small(layout: Layout) -> Run:
    return Run("gpt-1m", "this-machine", layout, micro_batch=1, seq_len=16)


@pytest.fixture(scope="module")
def crossed_by_train() -> Callable[[Run], list[str]]:
    def crossed(run: Run) -> list[str]:
        return modules_crossed(lambda: train(run, measured=False, num_steps=1))

    crossed(small(Layout(precision="fp32")))  # what a cache answers later
    return crossed


@pytest.mark.parametrize("name", LAYOUTS)
def test_where_it_is_called_it_crosses_no_more_modules_than_its_layout_needs(name, crossed_by_train):
    layout, most = LAYOUTS[name]
    modules = crossed_by_train(small(layout))
    assert "train/launched.py" in modules  # the tracer sees
    assert len(modules) <= most, f"train() enters {len(modules)} modules, at most {most}: {modules}"


@pytest.mark.parametrize(
    ("name", "measured", "most"),
    [("DDP", False, ON_RANK), ("FSDP2", False, ON_RANK), ("FSDP2", True, ON_RANK + MEASURED)],
)
def test_on_a_rank_it_crosses_no_more_than_it_did(name, measured, most):
    layout, _ = LAYOUTS[name]
    _, variables = as_program(small(layout), measured=measured, num_steps=2)
    result = launch.torchrun(PROGRAM, layout.world_size, variables=variables)
    for rank, reported in result.reports.items():
        modules = reported["modules"]
        assert "train/loop.py" in modules  # the tracer sees
        assert len(modules) <= most, f"rank {rank} enters {len(modules)} modules, at most {most}: {modules}"
