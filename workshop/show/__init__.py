"""Pictures and tables. Each function takes plain numbers, facts or predictions and returns what shows itself.

A picture is a `Picture` (a PNG in a notebook), a `Drawing` (SVG), or a `Table` (HTML in a notebook, text
elsewhere). Results of `measure` and `rehearse` may be handed in as they are: they are read by their fields.
matplotlib is imported when a picture is drawn, never before.

They lie sorted by shape: `bars`, `curves` (and `roof`, a curve with a lecture), `lanes` of time, `grids` of
boxes, `tables`. What serves a single lesson lies in `lessons`, a module for each day. All share the look of
`style`, the colours of `parts` of memory and the boxes of `drawing`.
"""

from __future__ import annotations

import importlib
from typing import Any

_BY_MODULE = {
    "workshop.show.bars": ("memory_by_part", "predicted_and_measured", "traffic_by_axis"),
    "workshop.show.curves": (
        "error_by_size", "loss_by_bytes", "memory_timeline", "memory_timelines", "monitor_strips", "spread",
    ),
    "workshop.show.gpu_records": ("measured_on_gpu",),
    "workshop.show.recorded": ("recorded_run",),
    "workshop.show.roof": ("layer_products", "roofline", "rooflines"),
    "workshop.show.lanes": ("icicle", "pipeline_gantt", "pipeline_gantts", "trace_lanes"),
    "workshop.show.grids": ("format_ranges", "number_in_formats"),
    "workshop.show.tables": ("plan_table", "traffic_table", "wire_bytes_by_axis"),
    "workshop.show.lessons.day0": ("parallel_cell",),
    "workshop.show.lessons.day1": ("gradient_sizes", "kernel_queue", "phase_bars", "storage_and_views"),
    "workshop.show.lessons.day2": (
        "before_and_after", "bucket_timeline", "engine_costs", "held_and_sent", "message_curve", "replicas",
        "ring_steps",
    ),
    "workshop.show.lessons.day3": (
        "causal_work", "compromises", "cut_matrices", "expert_shares", "f_and_g", "piece_shares",
        "positions_for_heads", "ring_blocks", "rows_to_experts",
    ),
    "workshop.show.lessons.day3_mesh": ("rank_map", "two_cuts"),
    "workshop.show.lessons.day4": (
        "bars_by_group",
        "delayed_scaling",
        "error_panels",
        "harm_by_way",
        "sizes_by_layer",
        "three_products",
        "training_curves",
    ),
    "workshop.show.lessons.day5": (
        "accuracy_by_trained", "channel_sizes", "codes_used", "grid_steps", "harm_by_bits", "kl_by_bits",
        "scores_by_step", "soft_targets", "two_fits", "zero_patterns",
    ),
    "workshop.show.lessons.day6": (
        "continued_losses", "counted_causes", "goodput_by_interval", "job_tree", "predicted_and_published",
        "rows_read", "saves_in_time", "states_of_ranks",
    ),
    "workshop.show.lessons.day7": (
        "bits_held", "chance_to_be_found", "learned_and_forgotten", "learned_by_age", "reach_and_leak",
        "split_curve", "times_read", "two_jobs",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _BY_MODULE.items() for name in names}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Load the module of a picture when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(
            f"module 'workshop.show' has no picture {name!r}; it has {', '.join(_MODULE_OF)}"
        )
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
