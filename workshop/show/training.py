"""Losses of several runs, step by step, and beside them one number more of some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import Picture, new_figure, rank_colour


def training_curves(
    losses: Mapping[str, Sequence[float]],
    beside: Mapping[str, Sequence[float]],
    label: str,
    log2: bool = False,
) -> Picture:
    """Two panels over steps: each run's loss, and the number called ``label`` of the runs in ``beside``.

    log2: draw that number on an axis of powers of two. ValueError for a run in ``beside`` that has no losses.
    """
    if unknown := set(beside) - set(losses):
        raise ValueError(f"{sorted(unknown)} have no losses here; known are {sorted(losses)}")
    figure, axes = new_figure(8.4, 3.2, columns=2)
    for index, (name, values) in enumerate(losses.items()):
        look = {"color": rank_colour(index), "linewidth": 1.3, "linestyle": "-" if index % 2 == 0 else "--"}
        axes[0].plot(range(1, len(values) + 1), values, label=name, **look)
        if name in beside:
            axes[1].plot(range(1, len(beside[name]) + 1), beside[name], **look)
    for axis in axes:
        axis.set_xlabel("step")
    axes[0].set_ylabel("loss")
    axes[1].set_ylabel(label)
    if log2:
        axes[1].set_yscale("log", base=2)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    ends = ", ".join(f"{name} {values[-1]:.3f}" for name, values in losses.items())
    return Picture(figure, f"loss by steps, at the end: {ends}; and {label} of {', '.join(beside)}")
