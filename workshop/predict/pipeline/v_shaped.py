"""Schedules that fold the pipeline, so that a rank holds two stages that lie far apart.

**ZB-V** (Qi et al. 2024, arXiv 2405.15362) cuts the model into ``2 p`` chunks and lays them out as a V: rank
``i`` holds chunks ``i`` and ``2 p - 1 - i``, so rank 0 has the embedding and the loss.  Every rank keeps as
many activations as 1F1B's first rank does, ``p`` micro-batches of its two chunks.

**DualPipe** (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) sends micro-batches from both ends at once: rank
``i`` holds stages ``i`` and ``p - 1 - i``, twice the weights, and ``p + 1`` micro-batches' activations of one
stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workshop.predict.case import TrainingConfig
from workshop.predict.layouts import Layouts

FOLDS = ("zbv", "dualpipe")


def folded(config: TrainingConfig, layouts: Layouts) -> list[tuple[TrainingConfig, Layouts]]:
    """The two halves of each rank, as recipes and layouts, with the micro-batches alive in each."""
    p, m = layouts.pipeline, layouts.accumulation
    stages = 2 * p if config.schedule == "zbv" else p
    # DualPipe's p + 1 are shared between the two directions.
    alive = np.minimum(p, m) if config.schedule == "zbv" else np.minimum((p + 1) / 2, m)
    plain = replace(config, schedule="gpipe")
    one = 1 + 0 * p
    return [
        (plain, replace(layouts, pipeline=stages, virtual_stages=one, stage=stage, accumulation=alive))
        for stage in (layouts.stage, stages - 1 - layouts.stage)
    ]
