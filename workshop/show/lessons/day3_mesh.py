"""Day 3, lesson 35: which rank has which place in a layout, and which part of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workshop.facts.layout import AXES, Layout
from workshop.show.grids import cell, only_boxes
from workshop.show.style import Picture, legend, new_figure, rank_colour

_SHORT = {"tensor": "t", "context": "c", "shard": "s", "replicate": "r", "pipeline": "p"}
_PER_LINE = 8


def rank_map(layout: Layout, *, devices_per_node: int = 8, max_nodes: int = 8) -> Picture:
    """Boxes of ranks with their coordinates: t tensor, c context, s shard, r replicate, p pipeline stage.

    Ranks of one colour share a pipeline stage. Read a row of a node from left to right: the digit that
    changes first is the axis that talks most, so it should be the one that stays within a node.

    Axes of size one are left out. Of a larger world the first nodes and the last are drawn, ``max_nodes`` in
    all, and the words say how many there are. ValueError when a number is below 1.
    """
    if devices_per_node < 1 or max_nodes < 1:
        raise ValueError(
            f"devices_per_node = {devices_per_node}, max_nodes = {max_nodes}: both must be at least 1"
        )
    world = layout.world_size
    per_node = min(devices_per_node, world)
    num_nodes = -(-world // per_node)
    nodes = list(range(num_nodes))
    if num_nodes > max_nodes:
        nodes = [*range(max_nodes - 1), num_nodes - 1]
    axes = [axis for axis in AXES if getattr(layout, axis) > 1] or ["shard"]
    tall = -(-per_node // _PER_LINE)
    figure, axis = new_figure(7.4, 0.5 + len(nodes) * (0.25 + 0.5 * tall))
    for line, node in enumerate(nodes):
        ranks = range(node * per_node, min(world, (node + 1) * per_node))
        _node(axis, layout, (node, ranks), axes, line * (tall + 0.45))
    bottom = len(nodes) * (tall + 0.45) - 0.25
    only_boxes(axis, (-1.1, min(per_node, _PER_LINE) + 0.1), (bottom, -0.2))
    words = _layout_in_words(layout, axes, per_node, num_nodes)
    left = f"; {num_nodes - len(nodes):,} nodes are not drawn" if num_nodes > len(nodes) else ""
    axis.set_title(words + left, fontsize=9, loc="left")
    return Picture(figure, (words + left).replace("\n", " "))


def _node(axis: Any, layout: Layout, node: tuple[int, range], axes: Sequence[str], top: float) -> None:
    number, ranks = node
    wide, tall = min(len(ranks), _PER_LINE), -(-len(ranks) // _PER_LINE)
    cell(axis, (-0.06, top - 0.08, wide + 0.12, tall + 0.16), "none", edgecolor="#333333")
    axis.text(-0.15, top + tall / 2, f"node {number:,}", ha="right", va="center", fontsize=8)
    for place, rank in enumerate(ranks):
        down, across = divmod(place, _PER_LINE)
        at = layout.coordinates(rank)
        colour = rank_colour(at["pipeline"])
        cell(axis, (across + 0.04, top + down + 0.04, 0.92, 0.92), colour, edgecolor=colour, alpha=0.35)
        words = " ".join(f"{_SHORT[name]}{at[name]}" for name in axes)
        axis.text(
            across + 0.5, top + down + 0.3, f"{rank:,}", ha="center", va="center", fontsize=8, weight="bold"
        )
        axis.text(across + 0.5, top + down + 0.68, words, ha="center", va="center", fontsize=6.5)


def _layout_in_words(layout: Layout, axes: Sequence[str], per_node: int, num_nodes: int) -> str:
    """The sizes, and which axes leave the node."""
    sizes = ", ".join(f"{_SHORT[name]} {name} {getattr(layout, name)}" for name in axes)
    leaving = [name for name in axes if len({rank // per_node for rank in layout.group(0, name)}) > 1]
    across = f"across nodes: {', '.join(leaving)}" if leaving else "everything stays within a node"
    nodes = f"{num_nodes:,} node{'s' if num_nodes > 1 else ''} of {per_node}"
    return f"{layout.world_size:,} ranks on {nodes}: {sizes};\n{across}"


def two_cuts() -> Picture:
    """A batch and two matrices on 4 ranks: tensor 2 cuts first, then data 2; weights as torch stores them."""
    figure, axis = new_figure(7.4, 2.9)
    for data in range(2):
        words = f"ranks {2 * data}, {2 * data + 1}"
        cell(axis, (0, 1 + data, 2.2, 1), "#DDDDDD", words, ink="black", size=8, edgecolor="white")
    for tensor in range(2):
        for data in range(2):
            rank = 2 * data + tensor
            for place in ((3.6, 2 * tensor + data, 2.2, 1), (7.2 + 2.2 * tensor, 1 + data, 2.2, 1)):
                cell(axis, place, rank_colour(rank), f"rank {rank}", size=8, edgecolor="white")
    for x, y in (([3.5, 5.9], [2, 2]), ([9.4, 9.4], [0.9, 3.1])):
        axis.plot(x, y, color="black", linewidth=3, label="first cut: tensor")
    for x, y in (([3.5, 5.9], [1, 1]), ([3.5, 5.9], [3, 3]), ([7.1, 11.7], [2, 2]), ([-0.1, 2.3], [2, 2])):
        axis.plot(x, y, color="black", linewidth=1.2, linestyle="--", label="then: data")
    for left, words in (
        (0, "x (4 x 8), by rows"),
        (3.6, "up (16 x 8), by outputs"),
        (7.2, "down (8 x 16), by inputs"),
    ):
        axis.text(left, -0.25, words, fontsize=9, va="bottom")
    only_boxes(axis, (-0.3, 11.9), (4.1, -0.8))
    legend(figure, 2)
    words = (
        "up from top to bottom ranks 0, 2, 1, 3; down ranks 0 and 1 above 2 and 3; x ranks 0, 1 above 2, 3"
    )
    return Picture(figure, f"two matrices and a batch, cut by tensor and then by data: {words}")
