"""A ring all-reduce, step by step: which sums each rank holds after each step.

Every box is one chunk on one rank; the fuller it is, the more ranks' numbers are summed in it. An arrow
ends in the chunk that has just arrived from the left.
"""

from __future__ import annotations

from collections.abc import Sequence

from workshop.show.style import LIMIT, MEASURED, Picture, new_figure


def ring_steps(contributions: Sequence[Sequence[Sequence[int]]]) -> Picture:
    """One small panel per step. ``contributions[step][rank][chunk]``: how many ranks are summed in it."""
    from matplotlib.patches import Rectangle

    steps, ranks = len(contributions), len(contributions[0])
    figure, axes = new_figure(1.2 * steps, 1.75, columns=steps)
    for step, axis in enumerate(axes):
        for rank in range(ranks):
            for chunk in range(ranks):
                share = contributions[step][rank][chunk] / ranks
                axis.add_patch(Rectangle((rank + 0.05, -chunk - 0.95), 0.9, 0.9, fill=False, linewidth=0.6))
                axis.add_patch(Rectangle((rank + 0.05, -chunk - 0.95), 0.9, 0.9 * share, color=MEASURED))
                if step and contributions[step][rank][chunk] != contributions[step - 1][rank][chunk]:
                    axis.annotate(
                        "", (rank + 0.3, -chunk - 0.5), (rank - 0.4, -chunk - 0.5),
                        arrowprops={"arrowstyle": "->", "color": LIMIT}, annotation_clip=False,
                    )  # fmt: skip
        half = ranks - 1
        title = "start" if step == 0 else f"add {step}" if step <= half else f"hand out {step - half}"
        axis.set_title(title, fontsize=8)
        axis.set_xlim(-0.5, ranks)
        axis.set_ylim(-ranks, 0)
        axis.set_aspect("equal")
        axis.set_xticks([r + 0.5 for r in range(ranks)], [str(r) for r in range(ranks)], fontsize=7)
        labels = [f"chunk {chunk}" if step == 0 else "" for chunk in range(ranks)]
        axis.set_yticks([-chunk - 0.5 for chunk in range(ranks)], labels, fontsize=7)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    figure.supxlabel("rank", fontsize=8)
    return Picture(figure, f"a ring all-reduce over {ranks} ranks in {steps - 1} steps")
