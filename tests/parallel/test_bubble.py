"""The bubble of real ranks: what two of them idle is what the schedule says. Wants two quiet cores: `make test`
runs it when nothing else runs, and a machine that stalls in the middle gets two more launches."""

from pathlib import Path
from statistics import median

import pytest

from workshop import launch
from workshop.predict.pipeline_measured import measured_timeline, replayed

PROGRAM = Path(__file__).parent / "programs" / "pipeline_timed.py"
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "breadth-first")
APART = 0.1  # how far measured and simulated idle shares may be apart, as a share of the latter
# With two thin stages a rank there are twice the messages for half of the idle time, and what a message takes is in
# no schedule. Where others want a core now and then, these two come out further apart: said, and not called right.
DISTURBED = {"interleaved": 0.4, "breadth-first": 0.3}
LAUNCHES = 3


@pytest.fixture(scope="module")
def tries():
    """By schedule the timelines so far, and how to get more of all."""
    found = {schedule: [] for schedule in SCHEDULES}

    def more():
        ranks = launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=110))
        for schedule, timelines in found.items():
            for once in zip(ranks[0].tries[schedule], ranks[1].tries[schedule], strict=True):
                began = [own["began"] for own in once]
                timelines.append(measured_timeline([own["events"] for own in once], began))

    more()
    return found, more


def quickest(timelines):
    """The try that the rest of the machine disturbed least. Which one that is does not ask about the bubble."""
    return min(timelines, key=lambda timeline: timeline.seconds)


def unrest(timelines):
    """How much longer than the quickest try the median one took."""
    return median(timeline.seconds for timeline in timelines) / quickest(timelines).seconds - 1


def apart(timelines):
    """How far the idle share of the quickest try is from what its schedule says, as a share of that."""
    measured = quickest(timelines)
    return abs(measured.idle_share / replayed(measured).idle_share - 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.timeout(480)
def test_measured_idle_share_is_the_schedules(tries, schedule):
    found, more = tries
    while (least := apart(found[schedule])) > APART and len(found[schedule]) < LAUNCHES * 6:
        more()
    restless = unrest(found[schedule])
    if least > APART and (restless > 0.05 or least < DISTURBED.get(schedule, APART)):
        pytest.skip(f"{least:.0%} apart; a median step took {restless:.0%} more than the least: not quiet")
    assert least <= APART, (quickest(found[schedule]), replayed(quickest(found[schedule])))


def test_schedules_come_in_the_order_that_their_bubbles_have(tries):
    measured = {schedule: quickest(timelines) for schedule, timelines in tries[0].items()}
    assert measured["gpipe"].seconds < 0.85 * measured["naive"].seconds
    assert measured["interleaved"].idle_share < measured["gpipe"].idle_share < measured["naive"].idle_share
