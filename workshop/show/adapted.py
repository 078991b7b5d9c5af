"""A picture of ways to adapt a model: how much each trains, and what it brings."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.show.style import LIMIT, Picture, new_figure, rank_colour


def accuracy_by_trained(results: Mapping[str, tuple[int, float]]) -> Picture:
    """Accuracy over trained weights (log), a point for each method.

    results: by name, the trained weights and the accuracy, 0 to 1; a method that trains nothing is a line
    across. ValueError where no method trains anything.
    """
    trained = {name: found for name, found in results.items() if found[0]}
    if not trained:
        raise ValueError(f"nothing is trained in {sorted(results)}: there is no point to draw")
    figure, axis = new_figure(6.4, 3.2)
    for index, (name, (count, share)) in enumerate(trained.items()):
        axis.plot(count, share, "o", color=rank_colour(index), markersize=8)
        axis.annotate(name, (count, share), (0, 9), textcoords="offset points", ha="center", fontsize=9)
    counts = [count for count, _ in trained.values()]
    axis.set_xlim(min(counts) / 4, max(counts) * 4)
    for name, (count, share) in results.items():
        if not count:
            axis.axhline(share, color=LIMIT, linestyle="--", linewidth=1)
            axis.annotate(name, (min(counts) / 3, share), (0, 3), textcoords="offset points", fontsize=9)
    axis.set_xscale("log")
    axis.set_ylim(0, 1)
    axis.set_xlabel("trained weights")
    axis.set_ylabel("accuracy")
    words = ", ".join(f"{name} {count:,} trained, {share:.0%}" for name, (count, share) in results.items())
    return Picture(figure, words)
