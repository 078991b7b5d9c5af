"""Loss curves side by side: over steps, and over the bytes that were sent to get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.style import Picture, new_figure, rank_colour


def loss_by_bytes(
    losses: Mapping[str, Sequence[float]], sent_bytes: Mapping[str, Sequence[float]], every: int = 1
) -> Picture:
    """Two panels: each name's losses over steps, and over the bytes a rank had sent by then (log).

    losses, sent_bytes: by name, a number for every ``every`` steps; bytes are those sent since the number
    before. ValueError where the two do not name the same runs.
    """
    if set(losses) != set(sent_bytes):
        raise ValueError(f"losses of {sorted(losses)}, bytes of {sorted(sent_bytes)}: name the same runs")
    figure, axes = new_figure(8.0, 3.2, columns=2)
    for index, name in enumerate(losses):
        curve = list(losses[name])
        steps = [every * number for number in range(1, len(curve) + 1)]
        colour, style = rank_colour(index), "-" if index < 8 else "--"
        axes[0].plot(steps, curve, style, color=colour, linewidth=1.2, label=name)
        total, points = 0.0, []
        for sent, loss in zip(sent_bytes[name], curve, strict=True):
            total += sent
            if total > 0:
                points.append((total / 1e6, loss))
        if points:
            axes[1].plot(*zip(*points, strict=True), style, color=colour, linewidth=1.2)
            axes[1].plot(*points[-1], "o", color=colour, markersize=4)
    axes[0].set_xlabel("step")
    axes[0].set_ylabel("loss")
    _megabyte_axis(axes[1])
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in losses.items())
    return Picture(figure, f"loss by steps and by bytes sent; at the end: {ends}")


def _megabyte_axis(axis: Any) -> None:
    """Logarithmic, with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("MB a rank has sent")
