"""Day 2: collectives (21), DDP's buckets (22), copies (23), what ZeRO holds and sends (24), engines (26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.facts.units import format_bytes, format_seconds
from workshop.show.bars import at_end, bars_stacked
from workshop.show.grids import cell, no_lines
from workshop.show.parts import PART_COLOURS
from workshop.show.style import (
    LIMIT,
    MEASURED,
    Picture,
    byte_unit,
    legend,
    name_axes,
    new_figure,
    rank_colour,
)

Held = Mapping[int, Sequence[float]]
Costs = Mapping[str, Mapping[str, float]]
Pairs = Mapping[str, tuple[float, float]]
Event = tuple[str, int, str, float]
"""What ("ready", "sent", "arrived"), bucket, parameter, seconds."""


def before_and_after(before: Held, after: Held, name: str) -> Picture:
    """Two panels: values by rank before and after the collective ``name``.

    A column is a rank, a box is a value. A box has the colour of the rank that the value came from; a value
    that is a sum over ranks is white with a thick edge.

    ``before[rank]`` and ``after[rank]`` are short lists of numbers. A value after the collective that
    some rank held before keeps that rank's colour; any other is new, a result of the reduction.
    """
    figure, axes = new_figure(6.6, 0.5 + 0.42 * max(map(len, [*before.values(), *after.values()])), columns=2)
    owner = {value: rank for rank, values in sorted(before.items(), reverse=True) for value in values}
    tallest = max(map(len, [*before.values(), *after.values()]))
    for axis, held, title in ((axes[0], before, "before"), (axes[1], after, f"after {name}")):
        _held(axis, held, owner, tallest)
        axis.set_title(title, fontsize=10)
    return Picture(figure, f"what each rank holds before and after {name}")


def _held(axis: Any, held: Held, owner: Mapping[float, int], tallest: int) -> None:
    for column, rank in enumerate(sorted(held)):
        for row, value in enumerate(held[rank]):
            source = owner.get(value)
            face, edge = ("white", 1.8) if source is None else (rank_colour(source), 1.0)
            place = (column + 0.06, -row - 0.94, 0.88, 0.88)
            cell(axis, place, face, f"{value:g}", size=9, edgecolor="#333333", linewidth=edge)
    axis.set_xlim(0, len(held))
    axis.set_ylim(-tallest, 0)
    axis.set_xticks([i + 0.5 for i in range(len(held))], [f"rank {r}" for r in sorted(held)], fontsize=8)
    axis.set_yticks([])
    no_lines(axis)


def ring_steps(contributions: Sequence[Sequence[Sequence[int]]]) -> Picture:
    """One small panel per step. ``contributions[step][rank][chunk]``: how many ranks are summed in it.

    Every box is one chunk on one rank; the fuller it is, the more ranks' numbers are summed in it. An arrow
    ends in the chunk that has just arrived from the left.
    """
    steps, ranks = len(contributions), len(contributions[0])
    figure, axes = new_figure(1.2 * steps, 1.75, columns=steps)
    for step, axis in enumerate(axes):
        for rank in range(ranks):
            for chunk in range(ranks):
                share = contributions[step][rank][chunk] / ranks
                cell(axis, (rank + 0.05, -chunk - 0.95, 0.9, 0.9), "white", edgecolor="black", linewidth=0.6)
                cell(axis, (rank + 0.05, -chunk - 0.95, 0.9, 0.9 * share), MEASURED, edgecolor=MEASURED)
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
        no_lines(axis)
    figure.supxlabel("rank", fontsize=8)
    return Picture(figure, f"a ring all-reduce over {ranks} ranks in {steps - 1} steps")


def message_curve(
    message_bytes: Sequence[float],
    measured: Mapping[str, Sequence[float]],
    lines: Mapping[str, tuple[float, float]],
) -> Picture:
    """Seconds by message size, both logarithmic: measured points, and lines t = alpha + bytes / beta.

    ``measured``: name -> seconds at each size; ``lines``: name -> (alpha in s, beta in bytes/s). Its knee
    is at alpha x beta bytes, where the start costs as much as the bytes.
    """
    figure, axis = new_figure(6.4, 3.2)
    for index, (name, seconds) in enumerate(measured.items()):
        axis.plot(message_bytes, seconds, "o", markersize=4, color=rank_colour(index), label=name)
    knees = [alpha * beta for alpha, beta in lines.values()]
    for index, (name, (alpha, beta)) in enumerate(lines.items()):
        times = [alpha + size / beta for size in message_bytes]
        look = "--" if index else "-"
        axis.plot(message_bytes, times, look, color="#666666", linewidth=1.2, label=name)
        knee = knees[index]
        if min(message_bytes) < knee < max(message_bytes):
            axis.axvline(knee, color=LIMIT, linewidth=0.8, linestyle=look)
            side = "right" if knee < max(knees) else "left"  # of the text: away from the other line
            axis.text(knee, max(times) * 0.6, " knee ", fontsize=8, color=LIMIT, ha=side)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    name_axes(axis, "message, bytes", "seconds")
    legend(figure, 2 if sum(map(len, [*measured, *lines])) > 60 else 4)
    return Picture(figure, "seconds by message size: " + ", ".join([*measured, *lines]))


def bucket_timeline(events: Sequence[Event], end_of_backward: float) -> Picture:
    """A picture of one backward pass: gradients as ticks above, each bucket's way as a bar.

    events: what `workshop.parallel.ddp.BucketedDDP(watch=...)` was told, with the seconds since backward
    began. end_of_backward: seconds until `backward()` returned. ValueError where no bucket was sent.
    """
    times: dict[str, dict[int, float]] = {"sent": {}, "arrived": {}}
    for what, bucket, _, seconds in events:
        if what in times:
            times[what][bucket] = seconds
    sent, arrived = times["sent"], times["arrived"]
    if not sent:
        raise ValueError("no bucket was sent: give the events of a backward pass outside no_sync()")
    ready = [(bucket, seconds) for what, bucket, _, seconds in events if what == "ready"]
    last_gradient = max(seconds for _, seconds in ready)
    figure, axis = new_figure(7.0, 1.3 + 0.3 * len(sent))
    for bucket, seconds in ready:
        axis.plot([seconds * 1e3] * 2, [-0.35, 0.35], color=rank_colour(bucket), linewidth=2)
    for bucket in sorted(sent):
        start, end = sent[bucket] * 1e3, arrived.get(bucket, end_of_backward) * 1e3
        axis.barh(bucket + 1, end - start, 0.7, left=start, color=rank_colour(bucket))
    axis.axvline(last_gradient * 1e3, color="#666666", linewidth=0.8, linestyle=":")
    axis.text(last_gradient * 1e3, -0.75, "last gradient ", ha="right", fontsize=8, color="#666666")
    axis.set_yticks(
        range(len(sent) + 1), ["gradient ready", *(f"bucket {b} on its way" for b in sorted(sent))]
    )
    axis.tick_params(labelsize=8, length=2)
    axis.set_ylim(len(sent) + 0.6, -1.1)
    axis.set_xlim(0, end_of_backward * 1e3)
    name_axes(axis, "milliseconds since backward began")
    early = sum(seconds < last_gradient for seconds in sent.values())
    exposed = format_seconds(max(0.0, end_of_backward - last_gradient))
    words = f"{early} of {len(sent)} buckets were sent before the last gradient was ready; {exposed} exposed"
    axis.set_title(words, fontsize=9, loc="left")
    return Picture(figure, words)


def replicas(parts: Mapping[str, float], ranks: int, cap: float) -> Picture:
    """One stack per rank with the parts of its state (bytes), the copies pale, and the device's cap."""
    figure, axis = new_figure(6.4, 3.0)
    name_of_unit, unit = byte_unit(max(sum(parts.values()), cap))
    for rank in range(ranks):
        bottom = 0.0
        for index, (name, size) in enumerate(parts.items()):
            look: dict[str, Any] = {"alpha": 0.3} if rank else {"label": name}
            axis.bar(rank, size / unit, 0.7, bottom=bottom, color=rank_colour(index), **look)
            bottom += size / unit
    total = sum(parts.values())
    axis.axhline(cap / unit, color=LIMIT, linewidth=1.5)
    words = f"cap {format_bytes(cap)} "
    axis.annotate(
        words,
        (max(ranks, 4) - 0.45, cap / unit),
        (0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=LIMIT,
    )
    names = ["rank 0", *(f"rank {rank}\ncopy" for rank in range(1, ranks))]
    axis.set_xticks(range(ranks), names, fontsize=8)
    axis.set_xlim(-0.55, max(ranks, 4) - 0.45)  # up to four columns are equally wide
    name_axes(axis, y=f"{name_of_unit} a rank holds")
    axis.set_ylim(0, 1.15 * max(total, cap) / unit)
    legend(figure, len(parts), above=True)
    words = f"{ranks} ranks, {format_bytes(total)} each: one model and {ranks - 1} copies of it"
    return Picture(figure, words)


def held_and_sent(held: Costs, sent: Costs, cap: float, title: str = "") -> Picture:
    """Two panels with a stacked bar for each case: bytes held, with the device's cap, and bytes sent.

    held, sent: case -> part -> bytes; parts have the colours of `memory_by_part`, and others are grey. A case
    over the cap has its total in the cap's colour. ValueError where the two do not name the same cases.
    """
    if list(held) != list(sent):
        raise ValueError(f"held is of {list(held)}, sent of {list(sent)}: name the same cases in one order")
    figure, axes = new_figure(8.4, 1.5 + 0.36 * len(held), columns=2)
    parts = dict.fromkeys(part for costs in (held, sent) for each in costs.values() for part in each)
    colours = {part: PART_COLOURS.get(part, PART_COLOURS["other"]) for part in parts}
    for axis, costs, limit, label in (
        (axes[0], held, cap, "GB a rank holds"),
        (axes[1], sent, 0.0, "GB it sends in a step"),
    ):
        bars_stacked(
            axis, {case: {p: b / 1e9 for p, b in each.items()} for case, each in costs.items()}, colours
        )
        totals = [sum(each.values()) for each in costs.values()]
        for place, total in enumerate(totals):
            colour = LIMIT if limit and total > limit else "black"
            at_end(axis, total / 1e9, place, format_bytes(total, binary=False), colour)
        axis.set_xlim(0, 1.35 * max([limit, *totals]) / 1e9 or 1)
        name_axes(axis, label)
    axes[0].axvline(cap / 1e9, color=LIMIT, linewidth=1.5)
    figure.suptitle(f"{title}\nred: room for {format_bytes(cap, binary=False)}".strip(), fontsize=9)
    legend(figure, 5)
    cases = (
        f"{case} holds {format_bytes(sum(held[case].values()), binary=False)}, "
        f"sends {format_bytes(sum(sent[case].values()), binary=False)}"
        for case in held
    )
    return Picture(figure, "; ".join(cases))


def engine_costs(
    losses: Mapping[str, Sequence[float]], held: Costs, sent: Mapping[str, float], measured: Pairs
) -> Picture:
    """Three panels, a line or bar for each engine: loss over steps, bytes between steps by part, bytes sent.

    held: engine -> part -> predicted bytes. sent: engine -> predicted bytes of a step. measured: engine ->
    (held, sent), drawn as diamonds. Lines that lie on each other get thinner, so that each is seen.
    ValueError where the four do not name the same engines.
    """
    if not list(losses) == list(held) == list(sent) == list(measured):
        raise ValueError(f"name the same engines in one order, not {[*losses]}, {[*held]}, {[*sent]}")
    figure, axes = new_figure(8.4, 1.7 + 0.36 * len(held), columns=3)
    for index, (engine, values) in enumerate(losses.items()):
        look = {"linewidth": 2.0 * (len(losses) - index), "color": rank_colour(4 + index)}
        axes[0].plot(range(1, len(values) + 1), values, label=engine, **look)
    axes[0].legend(fontsize=8, frameon=False)
    name_axes(axes[0], "step", "loss")
    parts = dict.fromkeys(part for each in held.values() for part in each)
    colours = {part: rank_colour(index) for index, part in enumerate(parts)} | {"sent": "#BBBBBB"}
    stacks = held, {engine: {"sent": size} for engine, size in sent.items()}
    for place, (axis, rows, label) in enumerate(zip(axes[1:], stacks, ("holds", "sends"), strict=True)):
        sizes = [pair[place] for pair in measured.values()]
        unit, size = byte_unit(max(sizes))
        scaled = {name: {p: b / size for p, b in each.items()} for name, each in rows.items()}
        bars_stacked(axis, scaled, colours)
        points = [value / size for value in sizes]
        axis.plot(points, range(len(points)), "D", color="black", markersize=5, label="measured")
        axis.set_xlim(0, 1.1 * max(points))
        name_axes(axis, f"{unit} a rank {label}")
    axes[2].set_yticks([])
    handles = [axis.get_legend_handles_labels() for axis in axes[1:]]
    legend(figure, 7, handles={label: h for both in handles for h, label in zip(*both, strict=True)})
    cases = (
        f"{engine} holds {format_bytes(pair[0])}, sends {format_bytes(pair[1])}"
        for engine, pair in measured.items()
    )
    return Picture(figure, f"{len(losses)} engines, {len(values)} losses each; " + "; ".join(cases))
