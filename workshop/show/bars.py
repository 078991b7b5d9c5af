"""Predicted beside measured: two bars for each case, and the cap that neither may pass."""

from __future__ import annotations

from collections.abc import Sequence

from workshop.facts.units import format_bytes
from workshop.show.style import LIMIT, MEASURED, PREDICTED, Picture, new_figure


def predicted_and_measured(
    names: Sequence[str],
    predicted: Sequence[float],
    measured: Sequence[float | None],
    *,
    cap: float | None = None,
    what: str = "bytes a rank holds",
) -> Picture:
    """A figure with a grey bar (predicted) and a blue one (measured) for each name; sizes in bytes.

    A measured value of None is a run that went out of memory; it is drawn as such. ValueError when the
    three lists differ in length.
    """
    if not len(names) == len(predicted) == len(measured):
        raise ValueError(
            f"{len(names)} names, {len(predicted)} predictions, {len(measured)} measurements: "
            "each case needs one of each"
        )
    figure, axis = new_figure(6.4, 0.8 + 0.5 * len(names))
    unit = 2**20
    places = range(len(names))
    axis.barh(
        [p - 0.2 for p in places], [b / unit for b in predicted], 0.38, color=PREDICTED, label="predicted"
    )
    shown = [0 if b is None else b / unit for b in measured]
    axis.barh([p + 0.2 for p in places], shown, 0.38, color=MEASURED, label="measured")
    for place, value in zip(places, measured, strict=True):
        text = " out of memory" if value is None else " " + format_bytes(value)
        colour = LIMIT if value is None else "black"
        axis.text((value or 0) / unit, place + 0.2, text, va="center", fontsize=8, color=colour)
    if cap is not None:
        axis.axvline(cap / unit, color=LIMIT, linewidth=1.5, label=f"cap {format_bytes(cap)}")
    axis.set_yticks(list(places), names)
    axis.invert_yaxis()
    axis.set_xlabel(f"{what}, MiB")
    axis.set_xlim(0, 1.22 * max([*[b / unit for b in predicted], *shown, (cap or 0) / unit]))
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    cases = zip(names, predicted, measured, strict=True)
    return Picture(figure, f"{what}: " + "; ".join(_in_words(*case) for case in cases))


def _in_words(name: str, predicted: float, measured: float | None) -> str:
    found = "out of memory" if measured is None else f"measured {format_bytes(measured)}"
    return f"{name}, predicted {format_bytes(predicted)}, {found}"
