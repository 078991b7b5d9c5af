"""The bubble of real ranks: what two of them idle is what the schedule says. Wants two quiet cores: `make test`
runs it when nothing else runs."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.predict.pipeline import simulate_pipeline
from workshop.predict.pipeline_measured import measured_durations, measured_timeline, replayed

PROGRAM = Path(__file__).parent / "programs" / "pipeline_timed.py"
CHUNKS = {"naive": 1, "gpipe": 1, "1f1b": 1, "interleaved": 2, "breadth-first": 2}


@pytest.fixture(scope="module")
def tries():
    """By schedule, one timeline for each try."""
    ranks = launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=110))
    return {
        schedule: [
            measured_timeline([own["events"] for own in once], [own["began"] for own in once])
            for once in zip(ranks[0].tries[schedule], ranks[1].tries[schedule], strict=True)
        ]
        for schedule in CHUNKS
    }


def quickest(timelines):
    """The try that the rest of the machine disturbed least. Which one that is does not ask about the bubble."""
    return min(timelines, key=lambda timeline: timeline.seconds)


@pytest.mark.parametrize("schedule", CHUNKS)
def test_measured_idle_share_is_the_schedules_within_ten_percent(tries, schedule):
    measured = quickest(tries[schedule])
    assert measured.idle_share == pytest.approx(replayed(measured).idle_share, rel=0.1)


def test_schedules_come_in_the_order_that_their_bubbles_have(tries):
    measured = {schedule: quickest(timelines) for schedule, timelines in tries.items()}
    for schedule, timeline in measured.items():
        simulated = simulate_pipeline(
            schedule, 2, 4, measured_durations(timeline), CHUNKS[schedule]
        ).idle_share
        print(f"{schedule:<14} simulated {simulated:.3f} measured {timeline.idle_share:.3f}")
    assert measured["gpipe"].seconds < 0.8 * measured["naive"].seconds
    assert measured["interleaved"].idle_share < measured["gpipe"].idle_share < measured["naive"].idle_share
