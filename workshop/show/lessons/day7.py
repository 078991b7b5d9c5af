"""Day 7: near copies that are found, and how often each sample was read (71); how many bits a parameter holds
(72); what was learned and forgotten (73); how far a preference reaches, what leaks to answers that nobody
judged (74); who waits for whom (75).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.show.grids import no_lines
from workshop.show.style import (
    LIMIT,
    Picture,
    legend,
    name_axes,
    new_figure,
    panels,
    rank_colour,
)

ROLLOUT, TRAIN = "#E69F00", "#0072B2"
"""Colours of the two jobs of a model that learns from its own answers."""
READ_OFF = {
    "less often": LIMIT,
    "as often as wanted": "#DCE6EE",
    "once more": "#E69F00",
    "more than that": "#7A4A00",
}
"""Colours of a sample by how often it was read, beside what was wanted."""


def chance_to_be_found(
    curves: Mapping[str, tuple[int, int]], measured: Mapping[str, Mapping[float, float]]
) -> Picture:
    """The chance that two texts share a bucket, by their Jaccard similarity: 1 - (1 - s^rows)^bands.

    Args:
        curves: by name, the number of bands and the hashes (rows) in each.
        measured: for some of these names, by similarity, the share of pairs that was found: drawn as points.

    Raises:
        ValueError: measured has a name that curves has not.
    """
    if unknown := set(measured) - set(curves):
        raise ValueError(f"no curve for {', '.join(sorted(unknown))}; there are {', '.join(curves)}")
    figure, axis = new_figure(6.6, 3.2)
    steps = [step / 200 for step in range(201)]
    for index, (name, (bands, rows)) in enumerate(curves.items()):
        colour = rank_colour(index)
        axis.plot(steps, [1 - (1 - s**rows) ** bands for s in steps], color=colour, label=name)
        if points := measured.get(name):
            style = {"color": colour, "linestyle": "none", "markersize": 7, "label": f"{name}, measured"}
            axis.plot(list(points), list(points.values()), marker="o", **style)
    name_axes(axis, "Jaccard similarity of two texts", "chance to be found")
    legend(figure, 2)
    middle = ", ".join(
        f"{name} finds half at {(1 - 0.5 ** (1 / b)) ** (1 / r):.2f}" for name, (b, r) in curves.items()
    )
    return Picture(figure, f"chance to be found by similarity; {middle}")


def times_read(ways: Mapping[str, tuple[Sequence[int], int]]) -> Picture:
    """A strip for each way to read: a line for each sample, in the colour of how often it was read.

    Args:
        ways: by name, how often each sample was read, in the order of the file, and how often is wanted.

    Raises:
        ValueError: the ways are not of as many samples.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    lengths = {name: len(counts) for name, (counts, _) in ways.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"as many samples in each way, not {lengths}")
    rows = [[1 + max(-1, min(2, count - wanted)) for count in counts] for counts, wanted in ways.values()]
    figure, axis = new_figure(8.4, 0.42 * len(ways) + 1.0)
    colours = ListedColormap(list(READ_OFF.values()))
    axis.imshow(rows, cmap=colours, vmin=-0.5, vmax=3.5, aspect="auto", interpolation="nearest")
    for row in range(1, len(rows)):
        axis.axhline(row - 0.5, color="white", linewidth=6)
    axis.set_yticks(range(len(ways)), list(ways))
    no_lines(axis)
    name_axes(axis, "sample, in the order of the file")
    legend(figure, 4, handles={name: Patch(color=colour) for name, colour in READ_OFF.items()})
    words = "; ".join(
        f"{name}: {min(counts)} to {max(counts)} times, {wanted} wanted"
        for name, (counts, wanted) in ways.items()
    )
    return Picture(figure, f"how often each sample was read: {words}")


def two_jobs(runs: Mapping[str, Mapping[int, Sequence[tuple[str, float, float]]]]) -> Picture:
    """A panel for each way to run, a row for each rank, a bar while it answers or trains; else it waits.

    Args:
        runs: by name and rank, (``rollout`` or ``train``, begin, end) in seconds. A panel begins with its
            first bar.

    Raises:
        ValueError: a job of another name.
    """
    colours = {"rollout": ROLLOUT, "train": TRAIN}
    jobs = {job for ranks in runs.values() for bars in ranks.values() for job, _, _ in bars}
    if unknown := jobs - set(colours):
        raise ValueError(f"no colour for {', '.join(sorted(unknown))}; there are {', '.join(colours)}")
    zero = {n: min(begin for bars in ranks.values() for _, begin, _ in bars) for n, ranks in runs.items()}
    length = {
        n: max(end for bars in ranks.values() for *_, end in bars) - zero[n] for n, ranks in runs.items()
    }
    figure, axes = panels(3.4 * len(runs), 1.9, len(runs))
    for axis, (name, ranks) in zip(axes, runs.items(), strict=True):
        for rank, bars in ranks.items():
            for job, begin, end in bars:
                left = 1e3 * (begin - zero[name])
                axis.barh(rank, 1e3 * (end - begin), 0.7, left, color=colours[job], label=job)
        axis.set_xlim(0, 1e3 * max(length.values()))
        axis.set_yticks(list(ranks), [f"rank {rank}" for rank in ranks])
        axis.invert_yaxis()
        axis.set_title(name, fontsize=9)
        name_axes(axis, "ms")
    legend(figure, 2)
    busy = {
        n: sum(end - begin for bars in ranks.values() for _, begin, end in bars) / (len(ranks) * length[n])
        for n, ranks in runs.items()
    }
    words = ", ".join(f"{name} {share:.0%} of the time" for name, share in busy.items())
    return Picture(figure, f"ranks at work: {words}")


def learned_by_age(ways: Mapping[str, Mapping[int, float]], before: float) -> Picture:
    """What a model can do after it has learned from answers of older weights; a line for each way.

    Args:
        ways: by name, and by age of the weights in steps, the share of right answers.
        before: that share before it learned.
    """
    figure, axis = new_figure(6.2, 2.9)
    ages = sorted({age for row in ways.values() for age in row})
    axis.axhline(before, color="#888888", linestyle="--", linewidth=1, label="before")
    for index, (name, row) in enumerate(ways.items()):
        places = [ages.index(age) for age in row]
        axis.plot(places, list(row.values()), "o-", color=rank_colour(index), label=name)
    axis.set_xticks(range(len(ages)), [str(age) for age in ages])
    axis.set_ylim(0, 1)
    name_axes(axis, "age of the weights that wrote, in steps", "right answers")
    legend(figure, 3)
    words = "; ".join(
        f"{name}: " + ", ".join(f"{share:.2f} at {age}" for age, share in row.items())
        for name, row in ways.items()
    )
    return Picture(figure, f"right answers after learning, {before:.2f} before; {words}")


def split_curve(seconds: Mapping[str, Sequence[float]], best: int, all_in_turns: float) -> Picture:
    """Seconds of a step by the number of GPUs that write: it lasts as long as the upper of two lines.

    Args:
        seconds: by job, its seconds with 1, 2, ... GPUs that write.
        best: how many write in the quickest step.
        all_in_turns: seconds of a step in which all GPUs write, then all train: a line across.
    """
    figure, axis = new_figure(6.2, 2.9)
    for (name, row), colour in zip(seconds.items(), (ROLLOUT, TRAIN), strict=True):
        axis.plot(range(1, len(row) + 1), list(row), color=colour, label=name)
    steps = [max(both) for both in zip(*seconds.values(), strict=True)]
    axis.plot(best, steps[best - 1], "o", color="black", label="the quickest step")
    axis.axhline(
        all_in_turns, color="#888888", linestyle="--", linewidth=1, label="all write, then all train"
    )
    axis.set_ylim(0, 4 * steps[best - 1])
    name_axes(axis, "GPUs that write", "seconds of a step")
    legend(figure, 2)
    words = (
        f"{best} GPUs write in the quickest step, {steps[best - 1]:.0f} s; all in turns {all_in_turns:.0f} s"
    )
    return Picture(figure, words)


def bits_held(
    runs: Mapping[str, Mapping[float, Sequence[float]]], along: str, limits: Mapping[str, Sequence[float]]
) -> Picture:
    """Bits that each parameter holds, by exposures or facts: a line through the means, a point for each seed.

    Args:
        runs: by name, by the value along the axis, bits per parameter with each seed.
        along: what the axis is.
        limits: by name, bits per parameter that nothing can exceed, at the values of the first name: dashed.
    """
    figure, axis = new_figure(6.6, 3.2)
    values = list(next(iter(runs.values())))
    for index, (name, bits) in enumerate(runs.items()):
        colour = rank_colour(index)
        means = {x: sum(row) / len(row) for x, row in bits.items()}
        axis.semilogx(list(means), list(means.values()), color=colour, label=name)
        points = [(x, y) for x, row in bits.items() for y in row]
        axis.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=5, linestyle="none")
    for name, most in limits.items():
        axis.plot(values, list(most), color="#888888", linestyle="--", linewidth=1, label=name)
    axis.set_xticks(values, [f"{x:g}" for x in values])
    axis.minorticks_off()
    axis.set_ylim(0, 1.25 * max(y for bits in runs.values() for row in bits.values() for y in row))
    name_axes(axis, along, "bits known, per parameter")
    legend(figure, len(runs) + len(limits))
    words = "; ".join(
        f"{name}: " + ", ".join(f"{sum(row) / len(row):.2f} at {x:g}" for x, row in bits.items())
        for name, bits in runs.items()
    )
    return Picture(figure, f"bits known, per parameter, by {along}; {words}")


def learned_and_forgotten(
    before: tuple[float, float], ways: Mapping[str, Sequence[tuple[float, float]]]
) -> Picture:
    """A point for each run: how unlikely right answers are to the model, and how unlikely its old ones.

    Args:
        before: perplexity of new right answers and of its old answers, before it was trained.
        ways: by name, both after each run; runs of a name share a colour.
    """
    figure, axis = new_figure(6.2, 3.0)
    axis.semilogx(*before, "s", color="#888888", markersize=8, label="before")
    for index, (name, runs) in enumerate(ways.items()):
        for place, (learned, forgotten) in enumerate(runs):
            style = {"color": rank_colour(index), "label": "" if place else name}
            axis.plot([before[0], learned], [before[1], forgotten], ":", color=style["color"], linewidth=1)
            axis.plot(learned, forgotten, "o", markersize=8, **style)
    axis.invert_xaxis()
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    name_axes(
        axis,
        "perplexity of right answers (learned: to the right)",
        "perplexity of old answers\n(forgotten: up)",
    )
    legend(figure, 1 + len(ways))
    words = "; ".join(
        f"{name}: " + ", ".join(f"right answers {learned:.3g}, old {old:.3g}" for learned, old in runs)
        for name, runs in ways.items()
    )
    return Picture(figure, f"perplexity before: right answers {before[0]:.3g}, old {before[1]:.3g}; {words}")


def reach_and_leak(
    expected: Mapping[float, float],
    shares: Mapping[float, Sequence[float]],
    leaked: Mapping[float, Sequence[float]],
    before: float,
    judges: float,
) -> Picture:
    """Two panels: the share of what judges like better, by beta; the share of answers that are in no pair.

    Args:
        expected: by beta, the share of the better liked answer where the loss is smallest: a line.
        shares: by beta, that share in each run: points; no runs, no points.
        leaked: by the weight of a likelihood term in the loss, the share of answers in no pair, in each run.
        before: that share before training: a line across.
        judges: the share of the judges who like it better: a line across the first panel.
    """
    figure, (left, right) = panels(7.6, 2.8, 2)
    points = {"linestyle": "none", "marker": "o", "markersize": 7}
    left.plot(list(expected), list(expected.values()), color=rank_colour(0), label="model, predicted")
    left.axhline(judges, color="#888888", linestyle=":", linewidth=1.5, label="judges")
    for axis, rows, places, colour, label in (
        (left, shares, list(shares), rank_colour(0), "model, measured"),
        (right, leaked, list(range(len(leaked))), rank_colour(1), "in no pair, measured"),
    ):
        where = [place for place, row in zip(places, rows.values(), strict=True) for _ in row]
        values = [value for row in rows.values() for value in row]
        axis.plot(where, values, color=colour, label=label, **points)
        axis.set_ylim(0, 1.03)
    right.axhline(before, color="#888888", linestyle="--", linewidth=1, label="before")
    left.set_xscale("log")
    left.set_xticks(list(shares), [f"{beta:g}" for beta in shares])
    left.minorticks_off()
    right.set_xticks(range(len(leaked)), [f"{weight:g}" for weight in leaked])
    right.set_xlim(-0.5, len(leaked) - 0.5)
    left.set_title("how often the better liked answer is chosen", fontsize=9)
    right.set_title("how many answers are neither of the two", fontsize=9)
    name_axes(left, "beta", "share of the two")
    name_axes(right, "weight of the likelihood term", "share of all answers")
    legend(figure, 5)
    runs = {beta: row for beta, row in shares.items() if row}
    reach = "".join(f", {sum(row) / len(row):.0%} at beta {beta:g}" for beta, row in runs.items())
    leak = ", ".join(f"{sum(row) / len(row):.0%} with weight {weight:g}" for weight, row in leaked.items())
    words = f"liked better by {judges:.0%} of judges, of the two{reach}; neither: {before:.0%} before, {leak}"
    return Picture(figure, words)
