"""Pipeline parallelism: which schedule, how large a bubble, how much memory. The lecture: `schedules`."""

from workshop.predict.pipeline.closed import closed_bubble, closed_in_flight
from workshop.predict.pipeline.schedules import SCHEDULES, pipeline_orders, simulate_pipeline
from workshop.predict.pipeline.simulate import Action, Durations, Event, Overlap, PipelineTimeline, play

__all__ = [
    "SCHEDULES",
    "Action",
    "Durations",
    "Event",
    "Overlap",
    "PipelineTimeline",
    "closed_bubble",
    "closed_in_flight",
    "pipeline_orders",
    "play",
    "simulate_pipeline",
]
