"""One look for all pictures: what a colour means, quiet axes, and a legend that never lies over data."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from workshop.facts.units import BINARY_UNITS
from workshop.show import page

# Okabe and Ito's palette (2008): told apart by people with any colour vision.
RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
PREDICTED, MEASURED, LIMIT = "#BBBBBB", "#0072B2", "#D55E00"
PHASE_COLOURS = {
    "data": "#D55E00",
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "communication": "#CC79A7",
    "optimizer": "#009E73",
}
"""The phases of a training step, in their order."""


ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
"""The box of words that a line may cross: `bbox` of matplotlib's texts."""


def rank_colour(rank: int) -> str:
    """The colour of a rank; ranks eight apart share one."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def byte_unit(largest: float) -> tuple[str, float]:
    """The binary unit in which the largest number of a picture is at least one, and its bytes."""
    fitting = [(name, float(size)) for name, size in BINARY_UNITS.items() if largest >= size]
    return fitting[-1] if fitting else ("B", 1.0)


def new_figure(width: float = 6.4, height: float = 2.8, columns: int = 1) -> tuple[Any, Any]:
    """A figure that is not registered with pyplot, so that it is shown once and freed; and its axes.

    width, height: inches. One axis where there is one column, else a sequence of them.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=96, layout="constrained")
    axes = figure.subplots(1, columns)
    for axis in axes if columns > 1 else [axes]:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panels(width: float, height: float, columns: int) -> tuple[Any, list[Any]]:
    """A new figure and its axes as a list, also where there is one; inches."""
    figure, axes = new_figure(width, height, columns)
    return figure, list(axes) if columns > 1 else [axes]


def name_axes(axis: Any, x: str = "", y: str = "") -> None:
    """What is drawn to the right, and what upwards, each with its unit."""
    if x:
        axis.set_xlabel(x)
    if y:
        axis.set_ylabel(y)


def legend(
    figure: Any, columns: int, *, above: bool = False, handles: Mapping[str, Any] | None = None
) -> None:
    """What colours mean, below or above the axes: there it can hide nothing.

    handles: by label, artists that look so; otherwise every label of the figure, once.
    """
    shown = dict(handles or {})
    for axis in [] if handles else figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    where = "outside upper center" if above else "outside lower center"
    figure.legend(shown.values(), shown.keys(), loc=where, ncols=columns, fontsize=8, frameon=False)


def headed(title: str, words: str) -> str:
    """The words, behind a title where there is one."""
    return f"{title}: {words}" if title else words


class Picture:
    """A finished figure that shows itself: a PNG in a notebook, ``words`` where there are only words."""

    def __init__(self, figure: Any, words: str):
        self.figure = figure
        self.words = words

    def __repr__(self) -> str:
        return f"[picture: {self.words}]"

    @property
    def html(self) -> str:
        """The picture with its words as alternative text."""
        return page.image(self._repr_png_(), self.words)

    def _repr_html_(self) -> str | None:
        return self.html if page.is_live() else None

    def _repr_png_(self) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        # Drawing lays out as well. `savefig` would draw everything once before, only to have it laid out.
        data = io.BytesIO()
        FigureCanvasAgg(self.figure).print_png(data)
        return data.getvalue()
