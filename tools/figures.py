"""What a reader wants of every figure: axes that say what their numbers are, no legend over what is drawn.

Each rule is a function from a matplotlib figure to the sentences that say where it breaks the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_MATHTEXT = re.compile(r"\\[a-z]+")


def draw(figure: Any) -> Any:
    """Lay the figure out, so that everything has its place; returns the renderer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def numbers_without_a_name(figure: Any) -> list[str]:
    """Axes that show numbers and do not say of what. Ticks that are words (layouts) name themselves."""
    draw(figure)
    problems = []
    for number, axes in enumerate(figure.axes):
        sides = (
            ("x", axes.xaxis, axes.get_xlabel() or figure.get_supxlabel()),
            ("y", axes.yaxis, axes.get_ylabel() or figure.get_supylabel()),
        )
        for side, axis, name in sides if axes.axison else ():
            shown = [text.get_text() for text in axis.get_ticklabels(which="both") if text.get_visible()]
            if not name and (numbers := list(filter(_is_number, shown))):
                problems.append(f"panel {number}: no {side} label at {', '.join(numbers)}")
    return problems


def _is_number(text: str) -> bool:
    """Whether a tick's text is a number, powers of ten included, and says no word or unit."""
    return bool(text) and not any(letter.isalpha() for letter in _MATHTEXT.sub("", text))


def legends_over_data(figure: Any) -> list[str]:
    """Legends that lie over a line, a bar, an area, a point or words of a panel."""
    renderer = draw(figure)
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]
    problems = []
    for legend in legends:
        place = legend.get_window_extent(renderer)
        for number, axes in enumerate(figure.axes):
            hidden = {type(artist).__name__ for artist in _drawn(axes) if _covers(place, artist, renderer)}
            problems += [f"panel {number}: a legend over a {name}" for name in sorted(hidden)]
    return problems


def _drawn(axes: Any) -> Iterator[Any]:
    yield from (*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.texts)


def _covers(box: Any, artist: Any, renderer: Any) -> bool:
    """Whether a box of the figure touches what is seen of an artist."""
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.transforms import Bbox

    # On a logarithmic axis a bar begins infinitely far below the panel; nobody sees that part.
    place = Bbox.intersection(box, artist.axes.bbox) if artist.get_clip_on() else box
    if place is None:
        return False
    if isinstance(artist, Line2D):
        path = artist.get_path().transformed(artist.get_transform())
        if artist.get_linestyle() == "None":
            return place.count_contains(path.vertices) > 0
        return path.intersects_bbox(place, filled=False)
    if isinstance(artist, Patch):
        return artist.get_path().transformed(artist.get_transform()).intersects_bbox(place, filled=True)
    if isinstance(artist, Collection):
        paths = [path.transformed(artist.get_transform()) for path in artist.get_paths()]
        return any(path.intersects_bbox(place, filled=artist.get_fill()) for path in paths)
    return place.overlaps(artist.get_window_extent(renderer))
