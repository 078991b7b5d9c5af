"""The pipeline of the time model against the event simulation: equal for equal stages, close for uneven ones."""

import numpy as np
import pytest

from workshop.facts.catalogue import model
from workshop.facts.layout import SCHEDULES, Layout
from workshop.facts.stages import chunks, even_chunks
from workshop.predict.layouts import Layouts
from workshop.predict.pipeline import Durations, simulate_pipeline
from workshop.predict.pipeline.closed import Head, rank_layers, stages

FORWARD, BACKWARD, WEIGHT = 1.0, 2.0, 1.0  # where the formulas are exact: W = F = B - W
CHUNKED = ("interleaved", "breadth-first")


def layout_of(schedule, ranks, chunks_per_rank, **uneven):
    virtual = chunks_per_rank if schedule in CHUNKED else 1
    return Layout(pipeline=ranks, schedule=schedule, virtual_stages=virtual, **uneven)


def sizes_of(num_layers, layout):
    """Layers of every stage in the order of the model."""
    if layout.schedule == "zbv":
        return even_chunks(num_layers, 2 * layout.pipeline)
    return chunks(num_layers, layout)


def simulated(num_layers, layout, micro_batches, head):
    sizes = np.array(sizes_of(num_layers, layout), float)
    ends = np.zeros(len(sizes))
    ends[-1] = head
    takes = [list(sizes * each + ends * each / 3) for each in (FORWARD, BACKWARD, WEIGHT)]
    ranks, virtual = layout.pipeline, layout.virtual_stages
    return simulate_pipeline(layout.schedule, ranks, micro_batches, Durations(*takes), virtual).seconds


def closed(num_layers, layout, micro_batches, head):
    spec = model("llama-3-70b").resized(num_layers=num_layers)
    ends = chunks(num_layers, layout)
    uneven = layout.first_stage_layers or layout.last_stage_layers or layout.embedding_in_stages
    layouts = Layouts.of_columns(
        pipeline=layout.pipeline,
        virtual_stages=layout.virtual_stages,
        schedule=SCHEDULES.index(layout.schedule),
        accumulation=micro_batches,
        first_layers=ends[0] if uneven else -1,
        last_layers=ends[-1] if uneven else -1,
    )
    layer = Head(*(np.array([seconds]) for seconds in (FORWARD, BACKWARD, WEIGHT)))
    last = Head(*(np.array([head * seconds / 3]) for seconds in (FORWARD, BACKWARD, WEIGHT)))
    found = stages(spec, layouts, layer, last)
    return float((micro_batches * found.slowest + found.bubble)[0])


@pytest.mark.parametrize("micro_batches", [8, 16, 40])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_stages_are_exact(schedule, micro_batches):
    layout = layout_of(schedule, 4, 3)
    played = simulated(48, layout, micro_batches, 0.0)
    # The ranks of these end staggered, by a stage's forward each: the next step begins staggered as well.
    played -= {"zb-h2": 3 * 48 / 4, "zbv": 3 * 48 / 8}.get(schedule, 0.0) * FORWARD
    found = closed(48, layout, micro_batches, 0.0)
    assert found == pytest.approx(played, rel=0.03 if schedule == "dualpipe" else 1e-9)


@pytest.mark.parametrize(
    ("num_layers", "uneven", "head"),
    [
        (48, {}, 3.0),
        (50, {}, 3.0),
        (53, {}, 0.0),
        (48, {"first_stage_layers": 9}, 3.0),
        (48, {"last_stage_layers": 7}, 3.0),
        (46, {"embedding_in_stages": True}, 3.0),
    ],
)
@pytest.mark.parametrize(
    "schedule", ["naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zbv"]
)
def test_uneven_stages_are_close(schedule, num_layers, uneven, head):
    if uneven and schedule in (*CHUNKED, "zbv"):
        pytest.skip("ends of a chunk, not of a stage: the next test")
    layout = layout_of(schedule, 4, 2, **uneven)
    played, found = (f(num_layers, layout, 16, head) for f in (simulated, closed))
    assert found == pytest.approx(played, rel=0.08 if schedule in (*CHUNKED, "zbv", "zb-h1") else 0.03)


@pytest.mark.parametrize("numbers", [(105, 16, 6, 48), (126, 16, 6, 32), (70, 4, 8, 16), (17, 8, 2, 64)])
def test_uneven_chunks_are_close(numbers):
    num_layers, ranks, virtual, micro_batches = numbers
    layout = layout_of("interleaved", ranks, virtual)
    played, found = (f(num_layers, layout, micro_batches, 0.0) for f in (simulated, closed))
    assert found == pytest.approx(played, rel=0.06)


@pytest.mark.parametrize(
    "uneven", [{}, {"first_stage_layers": 2}, {"last_stage_layers": 3}, {"embedding_in_stages": True}]
)
@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("num_layers", [30, 31, 37, 44])
def test_layers_of_ranks_are_those_of_the_facts(num_layers, ranks, virtual, uneven):
    if ranks == 1 and (virtual > 1 or uneven):
        pytest.skip("one stage has no ends")
    layout = Layout(pipeline=ranks, virtual_stages=virtual, **uneven)
    sizes = chunks(num_layers, layout)
    ends = {"first_layers": sizes[0], "last_layers": sizes[-1]} if uneven else {}
    layouts = Layouts.of_columns(pipeline=ranks, virtual_stages=virtual, **ends)
    found = rank_layers(model("llama-3-8b").resized(num_layers=num_layers), layouts)
    held = [sum(sizes[rank::ranks]) for rank in range(ranks)]
    assert (int(found.first[0]), int(found.last[0])) == (held[0], held[-1])
    if ranks > 2:
        assert int(found.middle[0]) == max(held[1:-1])
