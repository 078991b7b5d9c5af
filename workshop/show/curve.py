"""Seconds by message size: measured points and the line t = alpha + n / beta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import LIMIT, MEASURED, Picture, new_figure, rank_colour


def message_curve(
    message_bytes: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    lines: Mapping[str, tuple[float, float]],
) -> Picture:
    """A log-log figure.

    ``measured``: name -> seconds at each size; ``lines``: name -> (alpha in s, beta in bytes/s).
    """
    figure, axis = new_figure(6.4, 3.2)
    for index, (name, seconds) in enumerate(measured.items()):
        axis.plot(
            message_bytes,
            seconds,
            "o",
            markersize=4,
            color=rank_colour(index) if index else MEASURED,
            label=name,
        )
    for index, (name, (alpha, beta)) in enumerate(lines.items()):
        times = [alpha + size / beta for size in message_bytes]
        axis.plot(
            message_bytes, times, "-" if index == 0 else "--", color="#666666", linewidth=1.2, label=name
        )
        knee = alpha * beta
        if index == 0 and min(message_bytes) < knee < max(message_bytes):
            axis.axvline(knee, color=LIMIT, linewidth=0.8, linestyle=":")
            axis.text(knee, max(times) * 0.6, " alpha x beta", fontsize=8, color=LIMIT)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("message, bytes")
    axis.set_ylabel("seconds")
    axis.legend(fontsize=8, frameon=False)
    return Picture(figure, "seconds by message size: " + ", ".join([*measured, *lines]))
