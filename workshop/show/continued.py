"""A training in pieces: the losses of each start, laid on those of a run without a break."""

from __future__ import annotations

from collections.abc import Sequence

from workshop.show.style import Picture, new_figure, rank_colour


def continued_losses(unbroken: Sequence[float], starts: Sequence[tuple[int, Sequence[float]]]) -> Picture:
    """``unbroken``: the loss of steps 1, 2, ...; ``starts``: (steps before it, losses) of each start."""
    figure, axis = new_figure(6.6, 2.7)
    steps = range(1, len(unbroken) + 1)
    axis.plot(steps, unbroken, color="#BBBBBB", linewidth=6, label="one process, no break")
    for number, (before, losses) in enumerate(starts):
        at = range(before + 1, before + 1 + len(losses))
        axis.plot(at, losses, marker="o", color=rank_colour(number), label=f"start {number + 1}")
        if number:
            axis.axvline(before + 0.5, color="#555555", linestyle=":", linewidth=1)
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.legend(fontsize=8, frameon=False)
    pieces = ", ".join(f"start {n + 1} from step {before + 1}" for n, (before, _) in enumerate(starts))
    return Picture(figure, f"loss by step of an unbroken run, and on it the pieces: {pieces}")
