"""Pipelines by hand on real gloo ranks: one process's losses and gradients, in the order that was predicted."""

from pathlib import Path

import pytest

from workshop import launch
from workshop.parallel.stages import split_by_cost, split_evenly
from workshop.predict.pipeline import Durations, pipeline_orders, simulate_pipeline
from workshop.predict.pipeline.measured import measured_timeline
from workshop.predict.pipeline.simulate import Action

PROGRAM = Path(__file__).parent / "programs" / "pipeline_equal.py"
CASES = ["naive 1", "gpipe 1", "1f1b 1", "interleaved 2"]
CASES = [f"{case} tied=False" for case in CASES] + ["1f1b 1 tied=True", "breadth-first 2 tied=True"]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return launch.torchrun(launch.Script(PROGRAM), request.param, limits=launch.Limits(timeout=90))


@pytest.mark.parametrize("case", CASES)
def test_losses_and_every_gradient_are_those_of_one_process(ranks, case):
    names = set()
    for rank in range(len(ranks)):
        found = ranks[rank][case]
        assert found["losses"] < 1e-5
        assert {name: error for name, error in found["errors"].items() if not error < 1e-5} == {}
        names |= found["errors"].keys()
    assert ranks[len(ranks) - 1][case]["count"] == 2 * len(ranks)  # the last stage had every micro-batch
    assert len(names) == 2 * len(ranks) * 9 + 3  # all parameters of all layers, embedding, norm and head


@pytest.mark.parametrize("case", CASES)
def test_what_ran_and_what_was_kept_is_what_was_simulated(ranks, case):
    n, (schedule, chunks) = len(ranks), case.split()[:2]
    orders = pipeline_orders(schedule, n, 2 * n, int(chunks))
    timeline = simulate_pipeline(schedule, n, 2 * n, Durations(1, 2), int(chunks))
    for rank in range(n):
        assert ranks[rank][case]["order"] == [str(action) for action in orders[rank]]
        assert ranks[rank][case]["most_kept"] == timeline.peak_in_flight[rank]


def needs(action, last_stage):
    """What must have been computed before an action may begin."""
    kind, stage, micro = action
    if kind == "F":
        return Action("F", stage - 1, micro) if stage > 0 else None
    return Action("B", stage + 1, micro) if stage < last_stage else Action("F", stage, micro)


@pytest.mark.parametrize("case", CASES)
def test_nobody_acts_before_what_he_waits_for(ranks, case):
    """On one clock. How long they wait is a matter of the machine: `benchmarks/bubble.py`."""
    own = [ranks[rank][case] for rank in range(len(ranks))]
    timeline = measured_timeline([rank["events"] for rank in own], [rank["began"] for rank in own])
    ended = {event.action: event.end for event in timeline.events}
    waits = [(event, needs(event.action, timeline.num_stages - 1)) for event in timeline.events]
    assert sum(need is not None for _, need in waits) == len(waits) - 2 * len(
        ranks
    )  # all but the first stage's F
    for event, need in waits:
        assert need is None or event.start >= ended[need] - 1e-9, (event, need)  # rounding of the shift


def test_kept_at_most(ranks):
    """GPipe keeps all micro-batches; 1F1B one for each stage from its own to the last."""
    n = len(ranks)
    assert [ranks[rank]["gpipe 1 tied=False"]["most_kept"] for rank in range(n)] == [2 * n] * n
    assert [ranks[rank]["1f1b 1 tied=False"]["most_kept"] for rank in range(n)] == list(range(n, 0, -1))


def test_what_cannot_be_run_by_hand_is_told(ranks):
    assert "run_order runs F and B, and this order has I0@" in ranks[0].said
    assert ranks[0].name.startswith(
        "run by hand: naive, gpipe, 1f1b, interleaved, breadth-first; 'zbv' is not"
    )


def test_even_stages():
    assert split_evenly(8, 4) == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert [len(stage) for stage in split_evenly(10, 4)] == [3, 3, 2, 2]
    with pytest.raises(ValueError, match="3 layers cannot make 4 stages; 1 to 3 would do"):
        split_evenly(3, 4)


def test_stages_by_cost():
    """A head as dear as three layers takes layers away from the last stage."""
    assert split_by_cost([1, 1, 1, 1, 4], 2) == [range(4), range(4, 5)]
    assert [len(stage) for stage in split_by_cost([1] * 13, 4, last=3)] == [4, 4, 4, 1]
    with pytest.raises(ValueError, match="a cost is negative: -1"):
        split_by_cost([1, -1], 2)
