"""Events of ranks, each on its own clock, become one timeline; its durations simulate it again."""

import pytest

from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.pipeline.measured import measured_durations, measured_timeline
from workshop.predict.pipeline.simulate import Action, Event


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b"])
def test_a_played_step_cut_by_rank_and_put_together_is_itself(schedule):
    durations = Durations([1.0, 2.0, 1.5], [2.0, 4.0, 3.0])
    played = simulate_pipeline(schedule, 3, 5, durations)
    own = [[event for event in played.events if event.rank == rank] for rank in range(3)]
    began = [own[rank][0].start for rank in range(3)]  # each rank's clock begins with its first action
    on_own_clocks = [
        [event._replace(start=event.start - began[rank], end=event.end - began[rank]) for event in own[rank]]
        for rank in range(3)
    ]
    found = measured_timeline(on_own_clocks, [100 + start for start in began])
    assert found.seconds == pytest.approx(played.seconds)
    assert found.idle_share == pytest.approx(played.idle_share)
    assert found.peak_in_flight.tolist() == played.peak_in_flight.tolist()
    measured = measured_durations(found)
    assert measured.forward == pytest.approx([1.0, 2.0, 1.5])
    assert measured.backward == pytest.approx([2.0, 4.0, 3.0])


def test_the_clock_begins_with_the_first_action_of_any_rank():
    forward = Action("F", 0, 0)
    found = measured_timeline([[Event(0, forward, 0.5, 1.0)], [Event(1, forward, 0.25, 1.0)]])
    assert [event.start for event in found.events] == [0.0, 0.25]
    assert found.seconds == 0.75


def test_what_is_missing_is_told():
    one = [Event(0, Action("F", 0, 0), 0.0, 1.0)]
    with pytest.raises(ValueError, match="no events of rank 1"):
        measured_timeline([one, []])
    with pytest.raises(ValueError, match="1 ranks have events and 2 a beginning"):
        measured_timeline([one], [0.0, 0.0])
    with pytest.raises(ValueError, match="has no B of stage 0"):
        measured_durations(measured_timeline([one]))
