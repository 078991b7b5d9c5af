"""Which rank is who: every rank as a box in the box of its node, with its place on each axis of the layout.

Ranks of one colour share a pipeline stage. Read a row of a node from left to right: the digit that changes
first is the axis that talks most, so it should be the one that stays within a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workshop.facts.layout import AXES, Layout
from workshop.show.style import Picture, new_figure, rank_colour

_SHORT = {"tensor": "t", "context": "c", "shard": "s", "replicate": "r", "pipeline": "p"}
_PER_LINE = 8


def rank_map(layout: Layout, *, devices_per_node: int = 8, max_nodes: int = 8) -> Picture:
    """Boxes of ranks with their coordinates: t tensor, c context, s shard, r replicate, p pipeline stage.

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
    axis.set_xlim(-1.1, min(per_node, _PER_LINE) + 0.1)
    axis.set_ylim(len(nodes) * (tall + 0.45) - 0.25, -0.2)
    axis.axis("off")
    said = _in_words(layout, axes, per_node, num_nodes)
    left = f"; {num_nodes - len(nodes):,} nodes are not drawn" if num_nodes > len(nodes) else ""
    axis.set_title(said + left, fontsize=9, loc="left")
    return Picture(figure, (said + left).replace("\n", " "))


def _node(axis: Any, layout: Layout, node: tuple[int, range], axes: Sequence[str], top: float) -> None:
    from matplotlib.patches import Rectangle

    number, ranks = node
    wide, tall = min(len(ranks), _PER_LINE), -(-len(ranks) // _PER_LINE)
    axis.add_patch(Rectangle((-0.06, top - 0.08), wide + 0.12, tall + 0.16, fill=False, edgecolor="#333333"))
    axis.text(-0.15, top + tall / 2, f"node {number:,}", ha="right", va="center", fontsize=8)
    for place, rank in enumerate(ranks):
        down, across = divmod(place, _PER_LINE)
        at = layout.coordinates(rank)
        colour = rank_colour(at["pipeline"])
        axis.add_patch(Rectangle((across + 0.04, top + down + 0.04), 0.92, 0.92, color=colour, alpha=0.35))
        words = " ".join(f"{_SHORT[name]}{at[name]}" for name in axes)
        axis.text(
            across + 0.5, top + down + 0.3, f"{rank:,}", ha="center", va="center", fontsize=8, weight="bold"
        )
        axis.text(across + 0.5, top + down + 0.68, words, ha="center", va="center", fontsize=6.5)


def _in_words(layout: Layout, axes: Sequence[str], per_node: int, num_nodes: int) -> str:
    """The sizes, and which axes leave the node."""
    sizes = ", ".join(f"{_SHORT[name]} {name} {getattr(layout, name)}" for name in axes)
    leaving = [name for name in axes if len({rank // per_node for rank in layout.group(0, name)}) > 1]
    across = f"across nodes: {', '.join(leaving)}" if leaving else "everything stays within a node"
    nodes = f"{num_nodes:,} node{'s' if num_nodes > 1 else ''} of {per_node}"
    return f"{layout.world_size:,} ranks on {nodes}: {sizes};\n{across}"
