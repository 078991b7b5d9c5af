"""Pictures and tables. Each function takes plain numbers, facts or predictions and returns what shows itself.

A picture is a `Picture` (a PNG in a notebook), a table a `Table` (HTML in a notebook, text elsewhere).
Results of `measure` and `rehearse` may be handed in as they are: they are read by their fields. matplotlib
is imported when a picture is drawn, never before. One idea, one module:

* `adapted`: accuracy by what was trained;
* `buckets`: DDP's overlap, from the first gradient to the last bucket;
* `codes`: numbers of few bits, and how often each is used;
* `losses`: loss curves over steps and over bytes sent;
* `costs`: what a rank holds beside what it sends, by case;
* `bars`: predicted beside measured, with a cap if there is one;
* `collective`: what each rank holds before and after a collective;
* `ring`: a ring all-reduce, step by step;
* `curve`: seconds by message size, measured points and the alpha-beta line;
* `copies`: what N ranks hold together, and how much of it is copies;
* `launching`: what happens when a parallel cell runs;
* `job_processes`: who starts whom in a job;
* `continued`: the losses of a training that ran in pieces;
* `parts`: memory by part, predicted, rehearsed and measured;
* `timeline`: live bytes over a step, of one run or of several;
* `traffic`: collectives by axis;
* `gantt`: a pipeline schedule, simulated or measured, alone or one below the other;
* `roof`: a device's roofline and matrix products or other operators under it;
* `ranks`: which rank holds which coordinate;
* `quantized`: the values of a grid, inputs by feature, perplexity by bytes a weight;
* `cut`: which rank holds which part of a matrix;
* `causal`: which rank computes which scores under a causal mask;
* `proposals`: the layouts of a plan;
* `layouts`: seconds of layouts, predicted beside measured; what each piece of a model holds;
* `bits`: one number in several formats, and their ranges;
* `rounding`: error by the size of a number;
* `amax`: largest magnitudes by layer, and by step beside delayed scaling; errors in groups;
* `gradients`: how large gradients are, and where a format ends;
* `training`: losses of several runs, and one number more of each, step by step;
* `storage`: what lies in memory, and the tables that strides make of it;
* `distilled`: soft targets, two ways to be near a distribution, scores by step;
* `published`: predicted beside published runs, time kept by the interval between saves;
* `watched`, `lanes`, `call_tree`, `phases`: what a monitor, a trace, cProfile and a step timer saw;
* `saving`: how long training stands still for a save;
* `pruned`: where zeros lie, and the spread over seeds.
"""

from __future__ import annotations

import importlib
from typing import Any

_PICTURES = {
    "predicted_and_measured": "workshop.show.bars",
    "before_and_after": "workshop.show.collective",
    "ring_steps": "workshop.show.ring",
    "message_curve": "workshop.show.curve",
    "held_and_sent": "workshop.show.costs",
    "replicas": "workshop.show.copies",
    "parallel_cell": "workshop.show.launching",
    "job_tree": "workshop.show.job_processes",
    "continued_losses": "workshop.show.continued",
    "memory_by_part": "workshop.show.parts",
    "memory_timeline": "workshop.show.timeline",
    "memory_timelines": "workshop.show.timeline",
    "traffic_table": "workshop.show.traffic",
    "traffic_by_axis": "workshop.show.traffic",
    "wire_bytes_by_axis": "workshop.show.traffic",
    "pipeline_gantt": "workshop.show.gantt",
    "pipeline_gantts": "workshop.show.gantt",
    "roofline": "workshop.show.roof",
    "rooflines": "workshop.show.roof",
    "layer_products": "workshop.show.roof",
    "rank_map": "workshop.show.ranks",
    "cut_matrices": "workshop.show.cut",
    "causal_work": "workshop.show.causal",
    "plan_table": "workshop.show.proposals",
    "layout_seconds": "workshop.show.layouts",
    "piece_shares": "workshop.show.layouts",
    "bucket_timeline": "workshop.show.buckets",
    "loss_by_bytes": "workshop.show.losses",
    "accuracy_by_trained": "workshop.show.adapted",
    "codes_used": "workshop.show.codes",
    "number_in_formats": "workshop.show.bits",
    "format_ranges": "workshop.show.bits",
    "error_by_size": "workshop.show.rounding",
    "sizes_by_layer": "workshop.show.amax",
    "delayed_scaling": "workshop.show.amax",
    "bars_by_group": "workshop.show.amax",
    "gradient_sizes": "workshop.show.gradients",
    "training_curves": "workshop.show.training",
    "storage_and_views": "workshop.show.storage",
    "channel_sizes": "workshop.show.quantized",
    "grid_steps": "workshop.show.quantized",
    "size_and_perplexity": "workshop.show.quantized",
    "soft_targets": "workshop.show.distilled",
    "two_fits": "workshop.show.distilled",
    "scores_by_step": "workshop.show.distilled",
    "zero_patterns": "workshop.show.pruned",
    "spread": "workshop.show.pruned",
    "monitor_strips": "workshop.show.watched",
    "trace_lanes": "workshop.show.lanes",
    "icicle": "workshop.show.call_tree",
    "phase_bars": "workshop.show.phases",
    "predicted_and_published": "workshop.show.published",
    "goodput_by_interval": "workshop.show.published",
    "saves_in_time": "workshop.show.saving",
}

__all__ = list(_PICTURES)


def __getattr__(name: str) -> Any:
    """Load the module of a picture when it is first asked for."""
    if name not in _PICTURES:
        raise AttributeError(f"module 'workshop.show' has no picture {name!r}; it has {', '.join(_PICTURES)}")
    return getattr(importlib.import_module(_PICTURES[name]), name)
