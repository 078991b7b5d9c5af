"""Day 5: adapters (51), codes of few bits (52), rounding (53), what a student learns (54), zeros (55)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.show.grids import no_lines
from workshop.show.style import (
    LIMIT,
    MEASURED,
    PREDICTED,
    Picture,
    legend,
    name_axes,
    new_figure,
    panels,
    rank_colour,
)


def accuracy_by_trained(results: Mapping[str, tuple[int, float]], questions: int = 0) -> Picture:
    """Accuracy over trained weights (log), a point for each method.

    results: by name, the trained weights and the accuracy, 0 to 1; a method that trains nothing is a line
    across. questions: how many were asked; then bars reach two standard errors up and down. ValueError where
    no method trains anything.
    """
    trained = {name: result for name, result in results.items() if result[0]}
    if not trained:
        raise ValueError(f"nothing is trained in {sorted(results)}: there is no point to draw")
    figure, axis = new_figure(7.4, 3.2)
    placed: list[int] = []
    in_order = sorted(trained, key=lambda name: trained[name][0])
    for index, name in enumerate(in_order):
        count, share = trained[name]
        place = count * 1.3 ** placed.count(count)  # equal counts stand side by side
        placed.append(count)
        off = 2 * (share * (1 - share) / questions) ** 0.5 if questions else 0.0
        axis.errorbar(place, share, off, fmt="o", color=rank_colour(index), markersize=8, linewidth=1.4)
        side = 1 if index % 2 == 0 else -1  # above and below in turn, so that neighbours have room
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "ha": "center"}
        axis.annotate(
            name, (place, share + side * off), (0, 8 * side), va="bottom" if side > 0 else "top", **look
        )
    counts = [count for count, _ in trained.values()]
    axis.set_xlim(min(counts) / 4, max(counts) * 4)
    for name, (count, share) in results.items():
        if not count:
            axis.axhline(share, color=LIMIT, linestyle="--", linewidth=1)
            above: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "va": "bottom"}
            axis.annotate(name, (max(counts), share), (0, 3), **above)
    axis.set_xscale("log")
    axis.set_ylim(0, 1)
    name_axes(axis, "trained weights", "accuracy")
    words = ", ".join(f"{name} {count:,} trained, {share:.0%}" for name, (count, share) in results.items())
    return Picture(figure, words)


def codes_used(formats: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Picture:
    """A stem for each code, at its number, as high as the share of weights that use it.

    formats: by name, the numbers and how many weights use each. ValueError where the two differ in length.
    """
    for name, (values, counts) in formats.items():
        if len(values) != len(counts):
            raise ValueError(f"{name}: {len(values)} numbers and {len(counts)} counts")
    top = max(max(counts) / sum(counts) for _, counts in formats.values())
    figure, axes = panels(8.0, 2.6, len(formats))
    for index, (axis, (name, (values, counts))) in enumerate(zip(axes, formats.items(), strict=True)):
        total = sum(counts)
        shares = [count / total for count in counts]
        axis.vlines(values, 0, shares, color=rank_colour(index), linewidth=3)
        axis.axhline(1 / len(values), color="#666666", linestyle=":", linewidth=1)
        axis.set_title(name, fontsize=10)
        name_axes(axis, "number", "share of the weights")
        axis.set_ylim(0, 1.05 * top)  # one height for all
    words = ", ".join(f"{name}: {len(values)} numbers" for name, (values, _) in formats.items())
    return Picture(figure, f"how often each code is used; {words}")


def grid_steps(numbers: Sequence[float], grids: Mapping[str, Sequence[float]]) -> Picture:
    """A histogram of numbers, and below it for each name a row of ticks: the values that its grid has."""
    figure, axis = new_figure(6.8, 1.9 + 0.35 * len(grids))
    bars, _, _ = axis.hist(numbers, bins=60, color=PREDICTED)
    top = max(bars)
    for row, (name, values) in enumerate(grids.items(), 1):
        height = -0.14 * top * row
        axis.plot(list(values), [height] * len(values), "|", color=rank_colour(row - 1), markersize=11)
        where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
        axis.annotate(name, (1, height), va="center", fontsize=8, **where)
    axis.set_ylim(-0.14 * top * (len(grids) + 0.7), 1.05 * top)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    name_axes(axis, "weight")
    return Picture(figure, "weights of a group, and the values of " + ", ".join(grids))


def channel_sizes(largest: Mapping[str, Sequence[float]], threshold: float) -> Picture:
    """A panel for each name: each input feature's largest magnitude, and a threshold (log scale)."""
    figure, axes = panels(8.4, 2.7, len(largest))
    for axis, (name, values) in zip(axes, largest.items(), strict=True):
        colours = [LIMIT if value >= threshold else MEASURED for value in values]
        axis.vlines(range(len(values)), 1e-9, list(values), color=colours, linewidth=0.7)
        axis.axhline(threshold, color=LIMIT, linewidth=0.8, linestyle="--")
        axis.set_yscale("log")
        axis.set_ylim(0.8 * min(map(min, largest.values())), 2 * max(threshold, *map(max, largest.values())))
        axis.set_title(name, fontsize=9)
        name_axes(axis, "input feature", "largest |x|" if axis is axes[0] else "")
        axis.tick_params(labelleft=axis is axes[0])  # one height for all
    above = [sum(value >= threshold for value in values) for values in largest.values()]
    words = ", ".join(f"{name}: {count}" for name, count in zip(largest, above, strict=True))
    return Picture(figure, f"largest input by feature; features that reach {threshold:g}: {words}")


def harm_by_bits(models: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Picture:
    """A panel for each model: by bits of a weight, perplexity in multiples of the unharmed one's (log).

    models: by name, and by method, bits and the multiple. ValueError where a multiple is not above zero.
    """
    rows = [row for methods in models.values() for row in methods.values()]
    if min(value for row in rows for value in row.values()) <= 0:
        raise ValueError("a multiple of a perplexity is above zero")
    widths = sorted({bits for row in rows for bits in row}, reverse=True)
    names = list(dict.fromkeys(name for methods in models.values() for name in methods))
    top = max(max(row.values()) for row in rows)
    figure, axes = panels(3.6 * len(models), 2.9, len(models))
    for axis, (title, methods) in zip(axes, models.items(), strict=True):
        axis.axhline(1, color=PREDICTED, linewidth=1)
        for name, row in methods.items():
            places = [widths.index(bits) for bits in row]
            style = {"color": rank_colour(names.index(name)), "markersize": 5, "label": name}
            axis.plot(places, list(row.values()), "o-", **style)
        axis.set_xticks(range(len(widths)), [str(bits) for bits in widths])
        axis.set_yscale("log")
        ticks = [tick for tick in (1, 1.5, 2, 3, 4, 6, 8, 12, 20, 50) if tick <= 1.3 * top]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks] if axis is axes[0] else [""] * len(ticks))
        axis.minorticks_off()
        axis.set_ylim(0.9, 1.2 * top)  # one height for all
        axis.set_title(title, fontsize=9)
        name_axes(axis, "bits of a weight", "perplexity, times the unharmed" if axis is axes[0] else "")
    legend(figure, len(names))
    fewest = {title: max(row[min(row)] for row in methods.values()) for title, methods in models.items()}
    worst = ", ".join(f"{title} {value:.2f} times" for title, value in fewest.items())
    return Picture(
        figure, f"perplexity by bits of a weight, in multiples of the unharmed; at the most: {worst}"
    )


def kl_by_bits(
    measured: Mapping[int, float], predicted: Mapping[int, float], others: Mapping[str, tuple[int, float]]
) -> Picture:
    """KL divergence by bits of a weight (log), beside what is predicted for it, and other grids as points."""
    figure, axis = new_figure(6.8, 3.0)
    widths = sorted(measured, reverse=True)
    axis.plot(widths, [predicted[bits] for bits in widths], "--", color="#666666", label="predicted")
    axis.plot(widths, [measured[bits] for bits in widths], "o-", color=MEASURED, label="equal steps")
    for index, (name, (bits, harm)) in enumerate(others.items(), 1):
        axis.plot([bits], [harm], "D", color=rank_colour(index), markersize=8, label=name)
    axis.set_yscale("log")
    axis.set_xticks(widths)
    axis.invert_xaxis()
    name_axes(axis, "bits of a weight", "KL divergence, nats a token")
    legend(figure, 4)
    words = ", ".join(f"{bits} bits {measured[bits]:.4f}" for bits in widths)
    more = "".join(f"; {name}, {bits} bits {harm:.4f}" for name, (bits, harm) in others.items())
    return Picture(figure, f"KL divergence by bits of a weight, equal steps: {words}{more}")


def soft_targets(
    words: Sequence[str], probabilities: Mapping[str, Sequence[float]], came: str = ""
) -> Picture:
    """Probabilities of some words, as shares of the largest; a panel for each name (a temperature).

    The word that came is in colour.
    ValueError where a panel does not have one number for each word.
    """
    for name, values in probabilities.items():
        if len(values) != len(words):
            raise ValueError(f"{name}: {len(values)} probabilities for {len(words)} words")
    figure, axes = panels(2.7 * len(probabilities), 2.6, len(probabilities))
    colours = [MEASURED if word == came else PREDICTED for word in words]
    for axis, (name, values) in zip(axes, probabilities.items(), strict=True):
        places = range(len(words))
        axis.barh(places, [value / max(values) for value in values], color=colours)
        axis.set_yticks(places, [repr(word) for word in words] if axis is axes[0] else [""] * len(words))
        axis.invert_yaxis()
        axis.set_xlim(0, 1)
        axis.locator_params(axis="x", nbins=4)
        axis.set_title(name, fontsize=9)
        name_axes(axis, "share of the likeliest")
    highest = ", ".join(f"{name}: {max(values):.2f}" for name, values in probabilities.items())
    return Picture(figure, f"probabilities of {len(words)} words; the highest at {highest}")


def two_fits(grid: Sequence[float], teacher: Sequence[float], fits: Mapping[str, Sequence[float]]) -> Picture:
    """A density with several humps, and what a simpler one makes of it under each divergence."""
    figure, axis = new_figure(6.4, 2.6)
    axis.fill_between(grid, teacher, color=PREDICTED, label="teacher")
    for index, (name, density) in enumerate(fits.items()):
        axis.plot(grid, density, color=rank_colour(index), label=name)
    axis.set_yticks([])
    name_axes(axis, "value", "density")
    legend(figure, 4)
    return Picture(figure, "one density and its fits: " + ", ".join(fits))


def scores_by_step(
    scores: Mapping[str, Mapping[int, float]], label: str, level: tuple[str, float] | None = None
) -> Picture:
    """A line for each name through its scores by step, and a level to compare with."""
    figure, axis = new_figure(6.4, 2.8)
    for index, (name, values) in enumerate(scores.items()):
        steps, heights = list(values), list(values.values())
        axis.plot(steps, heights, "o-", color=rank_colour(index), markersize=4, label=name)
    axis.set_xticks(sorted({step for values in scores.values() for step in values}))
    if level:
        axis.axhline(level[1], color="#666666", linewidth=0.8, linestyle=":", label=level[0])
    name_axes(axis, "step", label)
    legend(figure, 4)
    ends = ", ".join(f"{name} {list(values.values())[-1]:.2f}" for name, values in scores.items())
    return Picture(figure, f"{label} by step; at the end: {ends}")


def zero_patterns(masks: Mapping[str, Any]) -> Picture:
    """A panel for each name: a boolean matrix, what stays in colour."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    figure, axes = panels(2.3 * len(masks), 2.5, len(masks))
    shades = ListedColormap(["#EEEEEE", MEASURED])
    for axis, (name, mask) in zip(axes, masks.items(), strict=True):
        axis.imshow(mask, cmap=shades, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        axis.set_title(name, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
        no_lines(axis)
    handles = {"stays": Patch(facecolor=MEASURED), "becomes 0": Patch(facecolor="#EEEEEE")}
    legend(figure, 2, handles=handles)
    return Picture(figure, "which weights stay: " + ", ".join(masks))
