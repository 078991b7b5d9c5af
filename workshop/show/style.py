"""One look for all pictures: a colour for each rank, quiet axes, a size that fits a page."""

from __future__ import annotations

import io
from typing import Any

from workshop.facts.units import BINARY_UNITS

# Okabe and Ito's palette (2008): told apart by people with any colour vision.
RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
PREDICTED, MEASURED, LIMIT = "#BBBBBB", "#0072B2", "#D55E00"


def rank_colour(rank: int) -> str:
    """The colour of a rank; ranks eight apart share one."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def byte_unit(largest: float) -> tuple[str, float]:
    """The binary unit in which the largest number of a picture is at least one, and its bytes."""
    fitting = [(name, float(size)) for name, size in BINARY_UNITS.items() if largest >= size]
    return fitting[-1] if fitting else ("B", 1.0)


def new_figure(width: float = 6.4, height: float = 2.8, columns: int = 1) -> tuple[Any, Any]:
    """A figure that is not registered with pyplot, so that it is shown once and freed; and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=96, layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in axes if columns > 1 else [axes]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


class Picture:
    """A finished figure that shows itself: a PNG in a notebook, ``words`` where there are only words."""

    def __init__(self, figure: Any, words: str):
        self.figure = figure
        self.words = words

    def __repr__(self) -> str:
        return f"[picture: {self.words}]"

    def _repr_png_(self) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(self.figure)
        data = io.BytesIO()
        self.figure.savefig(data, format="png")
        return data.getvalue()
