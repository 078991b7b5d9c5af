"""How large gradients are, power of two by power of two, and where a number format ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.style import LIMIT, Picture, new_figure, rank_colour


def gradient_sizes(
    histograms: Mapping[str, Sequence[int]],
    lowest: int,
    zero_shares: Mapping[str, float],
    limits: Mapping[str, int],
) -> Picture:
    """A step line for each name over powers of two, shares of zero in the legend, limits as dotted lines.

    histograms: how many numbers have a magnitude from 2^k, for k from ``lowest`` on. zero_shares: by the same
    names. limits: words for some powers, such as the smallest number of a format.
    """
    figure, axis = new_figure(7.4, 3.2)
    for index, (name, counts) in enumerate(histograms.items()):
        powers = [lowest + number for number in range(len(counts) + 1)]
        label = f"{name}: {zero_shares[name]:.1%} zero"
        axis.stairs(
            counts, powers, color=rank_colour(index), linewidth=1.5, label=label, fill=index == 0, alpha=0.7
        )
    for words, power in limits.items():
        axis.axvline(power, color=LIMIT, linewidth=0.9, linestyle=":")
        axis.text(power, axis.get_ylim()[1], f" {words}", fontsize=8, color=LIMIT, va="top")
    axis.set_xlabel("size of a gradient, power of two")
    axis.set_ylabel("how many")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    zeros = ", ".join(f"{name} {share:.1%} zero" for name, share in zero_shares.items())
    return Picture(figure, f"sizes of gradients by power of two: {zeros}")
