"""The interval of a measured run's prediction, in the unit that was measured."""

from __future__ import annotations

from workshop.facts.precision import precision
from workshop.predict.interval import Interval, memory_margins, model_doubts, time_interval
from workshop.published.record import ALLOCATED, SECONDS, TIMES, MeasuredRun


def interval_of(record: MeasuredRun, quantity: str, predicted: float) -> Interval:
    """From p10 to p90 of what would be measured. quantity: one of `TIMES` or of `MEMORIES` in bytes."""
    run = record.run
    if quantity in TIMES:
        around = time_interval(run, record.software.name, 1.0)
        if quantity != SECONDS:  # a rate: the longest step is the least of it
            around = Interval(1 / around.upper, 1 / around.lower)
        return around.times(predicted)
    of_model = model_doubts(run.model, precision(run.layout.precision), run.adapter)
    kept, taken = memory_margins(of_model, run.implementation.name, run.layout.pipeline > 1)
    return (kept if quantity == ALLOCATED else taken).times(predicted)
