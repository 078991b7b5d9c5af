"""Day 3: cut matrices (31), a cut sequence (33), experts (34), the vision lab (36); `day3_mesh` has 35."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import cos, pi
from typing import Any

from workshop.facts.units import format_seconds
from workshop.show.grids import cell, ink_on, no_lines, only_boxes
from workshop.show.style import (
    LIMIT,
    RANK_COLOURS,
    Picture,
    headed,
    legend,
    name_axes,
    new_figure,
    panels,
    rank_colour,
)

CUTS = ("columns", "rows", "whole")


def cut_matrices(matrices: Mapping[str, tuple[int, int, str]], ranks: int, title: str = "") -> Picture:
    """Matrices side by side, on one scale, in the order in which they are applied (x A: inputs are rows).

    matrices: by name, (rows, columns, how), how one of "columns", "rows", "whole" (grey: every rank has it).
    ValueError for another cut, or where what is cut does not divide by the ranks.
    """
    for name, (rows, columns, how) in matrices.items():
        if how not in CUTS:
            raise ValueError(f"{name} is cut by {how!r}; known are {', '.join(CUTS)}")
        if how != "whole" and (columns if how == "columns" else rows) % ranks:
            raise ValueError(
                f"{name} has {rows} rows and {columns} columns: its {how} do not divide by {ranks} ranks"
            )
    tallest = max(rows for rows, _, _ in matrices.values())
    gap = 0.15 * tallest
    figure, axis = new_figure(7.4, 2.4)
    left = 0.0
    # A digit takes some seven of the figure's points: a part that is narrower shows its colour alone.
    digit = 7 / (7.4 * 72) * sum(columns + gap for _, columns, _ in matrices.values())
    for name, (rows, columns, how) in matrices.items():
        _matrix(axis, left, (rows, columns, how), ranks, digit)
        axis.text(left + columns / 2, -0.06 * tallest, name, ha="center", va="bottom", fontsize=8)
        size = f"{rows} x {columns}"
        axis.text(left + columns / 2, rows + 0.04 * tallest, size, ha="center", va="top", fontsize=7)
        left += columns + gap
    only_boxes(axis, (-gap, left), (1.2 * tallest, -0.25 * tallest))
    axis.set_aspect("equal")
    words = "; ".join(
        f"{name} {'in ' if how != 'whole' else ''}{how}" for name, (_, _, how) in matrices.items()
    )
    axis.set_title(title or f"{ranks} ranks", fontsize=9, loc="left")
    return Picture(figure, f"{title + ', ' if title else ''}{ranks} ranks: {words}")


def _matrix(axis: Any, left: float, matrix: tuple[int, int, str], ranks: int, digit: float) -> None:
    """One rectangle for each rank's part, with the rank's number in it where there is room for a digit."""
    rows, columns, how = matrix
    parts = 1 if how == "whole" else ranks
    for rank in range(parts):
        wide = columns / (parts if how == "columns" else 1)
        tall = rows / (parts if how == "rows" else 1)
        x, y = left + (rank * wide if how == "columns" else 0), rank * tall if how == "rows" else 0
        colour = "#BBBBBB" if how == "whole" else rank_colour(rank)
        words = "" if how == "whole" or min(wide, tall) < digit else f"{rank}"
        cell(axis, (x, y, wide, tall), colour, words, edgecolor="white", linewidth=1.0)


def causal_work(owners: Mapping[str, Sequence[int]]) -> Picture:
    """One panel for each way to deal out a sequence: queries downwards, keys to the right.

    owners: by name, the rank that holds each of the equal runs of positions, first to last. A rank computes
    what is below the diagonal in its rows; the busiest rank's share over the mean stands above.

    Raises ValueError where there is nothing to draw.
    """
    if not owners or not all(owners.values()):
        raise ValueError("no runs to draw; give at least one way, with the rank that holds each run")
    figure, axes = panels(3.2 * len(owners), 3.2, len(owners))
    words = []
    for axis, (name, ranks) in zip(axes, owners.items(), strict=True):
        busiest = _busiest(ranks)
        _scores(axis, ranks)
        axis.set_title(f"{name}: busiest rank {busiest:.2f} x mean", fontsize=9, loc="left")
        words.append(f"{name}, busiest rank {busiest:.2f} times the mean")
    return Picture(figure, f"scores under a causal mask by rank: {'; '.join(words)}")


def _busiest(ranks: Sequence[int]) -> float:
    """Area below the diagonal of the busiest rank's rows, over the mean of all."""
    area: dict[int, float] = {}
    for row, rank in enumerate(ranks):
        area[rank] = area.get(rank, 0.0) + row + 0.5
    return max(area.values()) * len(area) / sum(area.values())


def _scores(axis: Any, ranks: Sequence[int]) -> None:
    from matplotlib.patches import Polygon

    runs = len(ranks)
    for row, rank in enumerate(ranks):
        corners = [(0, row), (row, row), (row + 1, row + 1), (0, row + 1)]
        axis.add_patch(Polygon(corners, facecolor=rank_colour(rank), edgecolor="white", linewidth=0.8))
        axis.text(-0.15, row + 0.5, f"rank {rank}", ha="right", va="center", fontsize=7)
    axis.plot([0, runs], [0, runs], color="#888888", linewidth=0.8)
    axis.set_xlim(-1.6 * runs / 8, runs)
    axis.set_ylim(runs, 0)
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    name_axes(axis, "keys", "queries")
    no_lines(axis)


def rows_to_experts(sent: Sequence[Sequence[int]]) -> Picture:
    """Bands from ranks to the ranks that hold the experts, as wide as the rows that travel.

    sent: for each rank, how many rows it sends to each expert; the experts are dealt out evenly, in order.
    ValueError where they are not.
    """
    ranks, experts = len(sent), len(sent[0]) if sent else 0
    if not ranks or experts % ranks:
        raise ValueError(f"{experts} experts are not dealt out evenly to {ranks} ranks")
    figure, axis = new_figure(6.4, 3.4)
    here, total = experts // ranks, sum(map(sum, sent))
    leave, top, gap = [], 0.0, 0.05 * total
    for rank, row in enumerate(sent):
        words = f"tokens of rank {rank}:\n{sum(row)} rows"
        cell(axis, (-2.0, top, 2.0, sum(row)), rank_colour(rank), words, size=8)
        leave.append(top)
        top += sum(row) + gap
    came, top = [0] * ranks, 0.0
    for expert in range(experts):
        holder, first = expert // here, top
        for rank, row in enumerate(sent):
            _band(axis, (leave[rank], top), row[expert], rank_colour(rank))
            leave[rank], top = leave[rank] + row[expert], top + row[expert]
        came[holder] += int(top - first + 0.5)
        if top > first:
            words = f"expert {expert}: {top - first:.0f} rows"
            place = (5.0, first, 2.0, top - first)
            cell(axis, place, rank_colour(holder), words, edgecolor="white")
        if (expert + 1) % here == 0:
            middle = top - came[holder] / 2
            axis.text(7.1, middle, f"rank {holder}: {came[holder]}", fontsize=8, va="center")
            top += gap
    only_boxes(axis, (-2.1, 8.4), (total + (ranks - 1) * gap, -0.5))
    left = [sum(row) for row in sent]
    return Picture(figure, f"{ranks} ranks send {left} rows, and {came} come to their experts")


def _band(axis: Any, tops: tuple[float, float], rows: int, colour: str) -> None:
    """A band of so many rows from x = 0 to x = 5, its upper edge from the one height to the other."""
    steps = [step / 20 for step in range(21)]
    upper = [tops[0] + (tops[1] - tops[0]) * (1 - cos(pi * t)) / 2 for t in steps]
    lower = [y + rows for y in upper]
    axis.fill_between([5 * t for t in steps], upper, lower, color=colour, alpha=0.45, linewidth=0)


Point = tuple[float, float]  # bytes, seconds


def compromises(cases: Mapping[str, Mapping[str, tuple[Point, Point]]], cap: float) -> Picture:
    """A panel for each model, a colour for each kind of layout: memory to the right, time upwards.

    cases: model -> layout -> (predicted, measured), each (bytes of the fullest rank, seconds of a step). A
    ring is predicted, a disc measured. Right of the cap, in bytes, nothing fits; the fastest disc left of it
    has a circle. ValueError without a case.
    """
    if not cases or not all(cases.values()):
        raise ValueError("no layout to draw: give {'ViT': {'ZeRO-2': ((bytes, seconds), (bytes, seconds))}}")
    figure, axes = panels(3.7 * len(cases), 3.4, len(cases))
    kinds = list(dict.fromkeys(re.sub(r" x \d+", "", name) for ways in cases.values() for name in ways))
    best = {model: _fastest(ways, cap) for model, ways in cases.items()}
    for axis, (model, ways) in zip(axes, cases.items(), strict=True):
        for name, pair in ways.items():
            kind = re.sub(r" x \d+", "", name)
            _ring_and_disc(axis, pair, rank_colour(kinds.index(kind)), kind)
        if fastest := best[model]:
            _, (num_bytes, seconds) = ways[fastest]
            mark = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": "black"}
            axis.plot(num_bytes / 2**20, 1e3 * seconds, "o", **mark, label="fastest that fits")
        most = max(num_bytes for pair in ways.values() for num_bytes, _ in pair) / 2**20
        right = 1.08 * max(most, cap / 2**20)
        axis.axvspan(cap / 2**20, right, color="#EEEEEE", zorder=0)
        axis.axvline(cap / 2**20, color=LIMIT, linewidth=1.2)
        axis.text(right, 0.01, "does not fit ", ha="right", va="bottom", fontsize=8, color=LIMIT)
        axis.set_xlim(right=right)
        axis.set_ylim(0, 1.12e3 * max(seconds for pair in ways.values() for _, seconds in pair))
        name_axes(axis, "MiB on the fullest rank", "milliseconds a step")
        axis.set_title(model, fontsize=9, loc="left")
    legend(figure, 3)
    words = "; ".join(
        f"{model}: {', '.join(_pair_in_words(name, pair) for name, pair in ways.items())}"
        for model, ways in cases.items()
    )
    winners = ", ".join(f"{model} {name or 'nothing fits'}" for model, name in best.items())
    limit = f"under {cap / 2**20:.0f} MiB the fastest is: {winners}"
    return Picture(figure, f"{limit}. Memory and time, predicted to measured; {words}")


def _fastest(ways: Mapping[str, tuple[Point, Point]], cap: float) -> str | None:
    """The layout whose measured step is shortest among those that measured no more than the cap."""
    times = {name: seconds for name, (_, (num_bytes, seconds)) in ways.items() if num_bytes <= cap}
    return min(times, key=times.__getitem__, default=None)


def _ring_and_disc(axis: Any, pair: tuple[Point, Point], colour: str, label: str) -> None:
    (x, y), (x_then, y_then) = [(num_bytes / 2**20, 1e3 * seconds) for num_bytes, seconds in pair]
    axis.plot([x, x_then], [y, y_then], color=colour, linewidth=0.8)
    axis.plot(x, y, "o", markersize=8, color=colour, markerfacecolor="white")
    axis.plot(x_then, y_then, "o", markersize=8, color=colour, label=label)


def _pair_in_words(name: str, pair: tuple[Point, Point]) -> str:
    size, took = ([f"{each[0] / 2**20:.1f}" for each in pair], [format_seconds(each[1]) for each in pair])
    return f"{name} {' to '.join(size)} MiB and {' to '.join(took)}"


def piece_shares(
    names: Sequence[str],
    shares: Mapping[str, Sequence[float]],
    title: str = "",
    *,
    cuts: Mapping[str, int] | None = None,
) -> Picture:
    """One bar for each quantity, cut in the shares of the pieces, in order; a colour for each name.

    names: of the pieces; those of one kind share one. shares: quantity -> a number for every piece, in any
    unit. cuts: quantity -> so many pieces stand before a black line. ValueError where a quantity has not one
    number for each piece, and where there are more names than colours.
    """
    kinds = list(dict.fromkeys(names))
    if len(kinds) > len(RANK_COLOURS):
        raise ValueError(f"{len(kinds)} different names, and there are {len(RANK_COLOURS)} colours")
    for quantity, numbers in shares.items():
        if len(numbers) != len(names):
            raise ValueError(f"{quantity} has {len(numbers)} numbers for {len(names)} pieces")
    figure, axis = new_figure(7.0, 1.1 + 0.42 * len(shares))
    for row, (quantity, numbers) in enumerate(shares.items()):
        _pieces(axis, row, names, [100 * number / sum(numbers) for number in numbers])
        if quantity in (cuts or {}):
            at = 100 * sum(numbers[: (cuts or {})[quantity]]) / sum(numbers)
            axis.plot([at, at], [row - 0.45, row + 0.45], color="black", linewidth=3, label="cut")
    axis.set_yticks(range(len(shares)), list(shares))
    axis.set_ylim(len(shares) - 0.5, -0.5)
    axis.set_xlim(0, 100)
    name_axes(axis, "% of the whole model, from the first piece to the last")
    axis.set_title(title, fontsize=9, loc="left")
    legend(figure, 4 if cuts else 6)
    most = []
    for quantity, numbers in shares.items():
        piece = max(range(len(names)), key=lambda number, own=numbers: own[number])  # type: ignore[misc]
        cut = f", cut after {(cuts or {})[quantity]}" if quantity in (cuts or {}) else ""
        most.append(f"{quantity} most in {piece} {names[piece]}{cut}")
    return Picture(figure, headed(title, f"shares of {len(names)} pieces: " + "; ".join(most)))


def _pieces(axis: Any, row: int, names: Sequence[str], percent: Sequence[float]) -> None:
    """One bar: a box for each piece, with its number where there is room."""
    kinds, left = list(dict.fromkeys(names)), 0.0
    for number, (name, wide) in enumerate(zip(names, percent, strict=True)):
        colour = rank_colour(kinds.index(name))
        axis.barh(row, wide, 0.65, left=left, color=colour, label=name, edgecolor="white", linewidth=0.8)
        if wide > 1.8:
            middle = left + wide / 2, row
            axis.text(*middle, str(number), ha="center", va="center", fontsize=8, color=ink_on(colour))
        left += wide


def f_and_g() -> Picture:
    """relu(x A) B on two ranks, forward above and backward below: f and g, and which of them sends."""
    ways = {
        "forward": (
            "$x$", "f: nothing", "rank {}:\n$z = xA_{}$", "$h = $relu$(z)$", "$hB_{}$",
            "g: all_reduce", "$y$",
        ),
        "backward": (
            "$\\nabla x$", "f: all_reduce", "rank {}:\n$\\nabla z\\ A_{}^T$", "where $z > 0$",
            "$\\nabla y\\ B_{}^T$", "g: nothing", "$\\nabla y$",
        ),
    }  # fmt: skip
    figure, axis = new_figure(7.4, 3.1)
    for row, (way, labels) in enumerate(ways.items()):
        top = 3.0 * row
        axis.text(0, top - 0.15, f"{way} {'-->' if row == 0 else '<--'}", fontsize=9)
        for column, word in enumerate(labels):
            x = 1.25 * column
            if column in (0, 1, 5, 6):  # the same for both ranks
                sends = word.endswith("all_reduce")
                colour = LIMIT if sends else "#DDDDDD" if column in (1, 5) else "white"
                look = {"ink": "white" if sends else "black", "edgecolor": "#555555"}
                cell(axis, (x, top, 1.1, 2.0), colour, word.replace(": ", ":\n"), size=8, **look)
                continue
            for rank in range(2):
                place = (x, top + 1.05 * rank, 1.1, 0.95)
                cell(axis, place, rank_colour(rank), word.replace("{}", str(rank)), size=8)
    only_boxes(axis, (-0.1, 8.8), (5.1, -0.6))
    words = "forward f sends nothing and g all-reduces; backward g sends nothing and f all-reduces"
    return Picture(figure, f"relu(x A) B on two ranks, each with columns of A and rows of B: {words}")


def ring_blocks(ranks: int) -> Picture:
    """Whose keys and values each rank holds, step by step, as they go round; pale where they are later."""
    figure, axis = new_figure(1.2 + 1.1 * ranks, 0.5 + 0.42 * ranks)
    skipped = 0
    for rank in range(ranks):
        axis.text(-0.08, rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=8)
        for step in range(ranks):
            owner = (rank - step) % ranks
            skipped += owner > rank
            look = {"edgecolor": "white", "alpha": 0.25 if owner > rank else 1.0}
            words = f"of {owner}: masked" if owner > rank else f"of rank {owner}"
            ink = "black" if owner > rank else ink_on(rank_colour(owner))
            cell(axis, (step, rank, 1, 1), rank_colour(owner), words, ink=ink, size=8, **look)
    for step in range(ranks):
        axis.text(step + 0.5, -0.15, f"step {step}", ha="center", fontsize=8)
    only_boxes(axis, (-0.5, ranks), (ranks, -0.5))
    return Picture(
        figure,
        f"keys and values held by each of {ranks} ranks: in step s rank r has those of rank r - s; "
        f"{skipped} of {ranks * ranks} blocks are later ones and masked",
    )


def positions_for_heads(ranks: int) -> Picture:
    """Positions downwards, heads to the right, by the rank that holds them: before and after."""
    figure, axes = panels(6.4, 2.4, 2)
    for axis, title in zip(axes, ("my positions, all heads", "all positions, my heads"), strict=True):
        for rank in range(ranks):
            by_heads = title.endswith("my heads")
            place = (rank, 0, 1, ranks) if by_heads else (0, rank, ranks, 1)
            cell(axis, place, rank_colour(rank), f"rank {rank}", edgecolor="white")
        axis.set_xlim(0, ranks)
        axis.set_ylim(ranks, 0)
        axis.set_xticks([])
        axis.set_yticks([])
        name_axes(axis, "heads", "positions")
        no_lines(axis)
        axis.set_title(title, fontsize=9, loc="left")
    words = "before the all_to_all each has some positions of all heads, after it all positions of some heads"
    return Picture(figure, f"{ranks} ranks: {words}")


def expert_shares(shares: Mapping[str, Sequence[Sequence[float]]]) -> Picture:
    """A panel for each name: the share of choices that each expert got in each step, one on the other.

    shares: name -> a row for each step, with a number for each expert, in sum 1. ValueError without a name.
    """
    if not shares:
        raise ValueError("no shares to draw; give at least one training, with a row for each step")
    figure, axes = panels(3.6 * len(shares), 2.5, len(shares))
    words = []
    for axis, (name, rows) in zip(axes, shares.items(), strict=True):
        by_expert = [[100 * share for share in expert] for expert in zip(*rows, strict=True)]
        colours = [rank_colour(number) for number in range(len(by_expert))]
        axis.stackplot(range(len(rows)), by_expert, colors=colours, edgecolor="white", linewidth=0.3)
        axis.set_xlim(0, len(rows) - 1)
        axis.set_ylim(0, 100)
        name_axes(axis, "step", "% of choices, by expert")
        axis.set_title(name, fontsize=9, loc="left")
        words.append(f"{name}, busiest {max(rows[0]):.0%} at first and {max(rows[-1]):.0%} at the end")
    return Picture(figure, f"shares of {len(by_expert)} experts over steps: {'; '.join(words)}")
