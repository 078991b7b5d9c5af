"""Orders against formulas, formulas against the published table, and what cannot work is refused in words."""

import numpy as np
import pytest

from workshop.predict.pipeline import (
    SCHEDULES,
    Action,
    Durations,
    closed_bubble,
    closed_in_flight,
    pipeline_orders,
    play,
    simulate_pipeline,
)
from workshop.predict.pipeline.closed import CHUNKED

# (forward, whole backward, weight part): the formulas hold for W <= F <= B - W.
EQUAL_THIRDS = (1.0, 2.0, 1.0)
UNEVEN = (1.1, 2.1, 0.8)
SAME_F_AND_I = (1.2, 2.0, 0.8)


def _run(schedule, p, m, seconds, chunks=1):
    forward, backward, weight = seconds
    return simulate_pipeline(schedule, p, m, Durations(forward, backward, weight), chunks)


# Published for equal thirds (zbv) or F = I (dualpipe).
HOLDS = {
    "zbv": (EQUAL_THIRDS,),
    "dualpipe": (EQUAL_THIRDS, SAME_F_AND_I),
    "dualpipev": (EQUAL_THIRDS, SAME_F_AND_I),
}
EXACT = tuple(name for name in SCHEDULES if name not in ("v-half", "v-min"))
CASES = [
    (name, seconds) for name in EXACT for seconds in HOLDS.get(name, (EQUAL_THIRDS, UNEVEN, SAME_F_AND_I))
]


@pytest.mark.parametrize(("schedule", "seconds"), CASES)
@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 16), (6, 24), (8, 32)])
def test_bubble_is_the_formula(schedule, p, m, seconds):
    for chunks in (1, 2, 3) if schedule in CHUNKED else (1,):
        result = _run(schedule, p, m, seconds, chunks)
        assert result.bubble_seconds == pytest.approx(
            float(closed_bubble(schedule, p, m, Durations(*seconds))), abs=1e-9
        )


@pytest.mark.parametrize("schedule", EXACT)
@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (6, 24)])
def test_memory_is_the_formula(schedule, p, m):
    for chunks in (1, 2, 4) if schedule in CHUNKED else (1,):
        result = _run(schedule, p, m, EQUAL_THIRDS, chunks)
        assert result.peak_in_flight.max() == closed_in_flight(schedule, p, m, chunks)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_runs_once_and_in_order(schedule):
    p, m = 4, 8
    result = _run(schedule, p, m, EQUAL_THIRDS, chunks=2 if schedule in CHUNKED else 1)
    seen = {}
    for event in result.events:
        for action in (event.action,) if isinstance(event.action, Action) else event.action:
            assert action not in seen
            seen[action] = event
    for stage in range(result.num_stages):
        for mb in range(m):
            assert Action("F", stage, mb) in seen
            whole, split = Action("B", stage, mb) in seen, Action("I", stage, mb) in seen
            assert whole != split
            assert split == (Action("W", stage, mb) in seen)
            if stage:
                assert seen[Action("F", stage, mb)].start >= seen[Action("F", stage - 1, mb)].end - 1e-9
    assert result.busy_seconds.sum() == pytest.approx(3.0 * m * result.num_stages)


def test_published_ratios_for_equal_thirds():
    """github.com/sail-sg/zero-bubble-pipeline-parallelism README: B, B/3, 0, 0 with B = (p-1)/(m+p-1)."""
    p, m = 8, 24
    of_1f1b = _run("1f1b", p, m, EQUAL_THIRDS)
    assert of_1f1b.bubble_seconds / of_1f1b.seconds == pytest.approx((p - 1) / (m + p - 1))
    assert _run("zb-h1", p, m, EQUAL_THIRDS).bubble_seconds == pytest.approx(of_1f1b.bubble_seconds / 3)
    assert _run("zb-h2", p, m, EQUAL_THIRDS).bubble_seconds == pytest.approx(0, abs=1e-9)
    assert _run("zbv", p, m, EQUAL_THIRDS).bubble_seconds == pytest.approx(0, abs=1e-9)
    assert _run("zbv", p, m, EQUAL_THIRDS).peak_micro_batches.max() == of_1f1b.peak_micro_batches.max() == p


@pytest.mark.parametrize(
    ("schedule", "memory", "bubble"), [("v-half", 1 / 2, 1 / 2), ("v-min", 1 / 3, 2 / 3)]
)
@pytest.mark.parametrize("p", [4, 8, 16, 24])
def test_controllable_memory_is_near_its_published_share(schedule, memory, bubble, p):
    """The published shares are limits for many ranks; the orders add a few cells for turning round."""
    m = 4 * p
    mine, of_1f1b = _run(schedule, p, m, EQUAL_THIRDS), _run("1f1b", p, m, EQUAL_THIRDS)
    # Stages of the V are half as large, so their seconds are halved against 1F1B's.
    wanted = bubble * of_1f1b.bubble_seconds
    assert mine.bubble_seconds / 2 == pytest.approx(wanted, rel=0.25)
    assert memory * p <= mine.peak_micro_batches.max() <= memory * p + 0.1 * p + 1.5


def test_overlapped_pairs_shorten_dualpipe():
    p, m = 4, 12
    apart = simulate_pipeline("dualpipe", p, m, Durations(1.0, 2.0, 1.0))
    hidden = simulate_pipeline("dualpipe", p, m, Durations(1.0, 2.0, 1.0, 2.2))
    assert hidden.seconds < apart.seconds
    assert closed_bubble("dualpipe", p, m, Durations(1.0, 2.0, 1.0, 2.2)) < closed_bubble(
        "dualpipe", p, m, Durations(1.0, 2.0, 1.0)
    )


def test_communication_and_unequal_stages_delay():
    free = simulate_pipeline("1f1b", 4, 8, Durations(1.0, 2.0))
    linked = simulate_pipeline("1f1b", 4, 8, Durations(1.0, 2.0), communication_seconds=0.5)
    assert (
        linked.bubble_seconds >= free.bubble_seconds + 2 * 3 * 0.5 - 1e-9
    )  # down and up through three links
    heavy_end = simulate_pipeline("1f1b", 4, 8, Durations([1, 1, 1, 1.5], [2, 2, 2, 3.0]))
    assert heavy_end.seconds == pytest.approx(8 * 4.5 + 3 * 3)  # the slow stage is never idle once it starts


def test_breadth_first_needs_as_many_micro_batches_as_ranks():
    assert simulate_pipeline(
        "breadth-first", 4, 2, Durations(1.0, 2.0), chunks=2
    ).bubble_seconds > closed_bubble("breadth-first", 4, 2, Durations(1.0, 2.0))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipeline_orders("1f1p", 2, 2), "Did you mean '1f1b'"),
        (lambda: pipeline_orders("interleaved", 4, 6, 2), "try 8"),
        (lambda: pipeline_orders("1f1b", 4, 6, 2), "chunks=2"),
        (lambda: pipeline_orders("zb-h2", 4, 6), "zb-h1"),
        (lambda: pipeline_orders("zbv", 4, 6), "at least 8"),
        (lambda: pipeline_orders("dualpipe", 3, 8), "even number"),
        (lambda: pipeline_orders("gpipe", 0, 8), "ranks is 0"),
        (
            lambda: simulate_pipeline("1f1b", 2, 2, Durations([1, 2, 3], 2.0)),
            "3 durations were given for 2 stages",
        ),
        (lambda: simulate_pipeline("1f1b", 2, 2, Durations(-1.0, 2.0)), "negative"),
        (
            lambda: simulate_pipeline("zb-h1", 2, 2, Durations(1.0, 2.0, 3.0)),
            "longer than the whole backward",
        ),
    ],
)
def test_errors_speak(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_deadlock_names_who_waits():
    orders = [[Action("F", 0, 0), Action("B", 0, 0)], [Action("B", 1, 0), Action("F", 1, 0)]]
    with pytest.raises(ValueError, match="rank 1 waits for F0@1 to run B0@1"):
        play(orders, Durations(1.0, 2.0))


def test_closed_forms_are_vectorised():
    ranks = np.array([2, 4, 8])
    assert closed_bubble("1f1b", ranks, 16, Durations(1.0, 2.0)).tolist() == [3.0, 9.0, 21.0]
    assert closed_in_flight("interleaved", ranks, 16, 2).tolist() == [5, 11, 23]
