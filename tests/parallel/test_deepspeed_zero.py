"""DeepSpeed's stages give the single process's losses; what they send is what the docstring says."""

from pathlib import Path

import pytest

from tests.installed import skip_without
from workshop import launch

skip_without("deepspeed")
PROGRAM = Path(__file__).parent / "programs" / "deepspeed_equal.py"


@pytest.fixture(scope="module")
def ran(loaded_engine):
    return launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=110))


def test_every_stage_gives_the_single_process(ran):
    for rank in range(2):
        for name, (difference, _) in ran[rank].found.items():
            assert difference < (0.05 if "bf16" in name else 1e-5), (name, rank, difference)


def test_traffic_in_ring_counts(ran):
    sent = {name: round(times, 2) for name, (_, times) in ran[0].found.items()}
    assert [sent[f"stage {stage}"] for stage in range(4)] == [2, 3, 3, 3]
    assert sent["stage 3, as it comes"] == 2  # small models stay gathered
    assert sent["stage 3, bf16"] == 1.5


def test_it_is_quiet(ran):
    assert ran.text == ""


def test_what_it_says(ran):
    ranks, optimizer, offload = ran[0].told
    assert "the layout is for 8 ranks and there are 2: Layout(shard=2, ...)" in ranks
    assert "adamw" in optimizer
    assert "only stage 3 offloads weights" in offload
