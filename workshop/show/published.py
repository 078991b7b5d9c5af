"""Predicted beside published: how far a prediction is from what a run took, and what failures leave."""

from __future__ import annotations

from collections.abc import Sequence

from workshop.predict.published_runs import Reproduced
from workshop.show.style import LIMIT, MEASURED, PREDICTED, Picture, new_figure


def predicted_and_published(runs: Sequence[Reproduced]) -> Picture:
    """Two bars for each run, device hours on a logarithmic axis, and the deviation at their end."""
    figure, axis = new_figure(7.2, 1.0 + 0.42 * len(runs))
    places = range(len(runs))
    axis.barh(
        [p - 0.2 for p in places], [r.device_hours for r in runs], 0.38, color=PREDICTED, label="predicted"
    )
    axis.barh(
        [p + 0.2 for p in places], [r.published_hours for r in runs], 0.38, color=MEASURED, label="published"
    )
    for place, run in zip(places, runs, strict=True):
        longest = max(run.device_hours, run.published_hours)
        axis.text(longest * 1.08, place, run.off_by, va="center", fontsize=8)
    axis.set_yticks(list(places), [run.run.name for run in runs])
    axis.invert_yaxis()
    axis.set_xscale("log")
    largest = max(max(run.device_hours, run.published_hours) for run in runs)
    smallest = min(min(run.device_hours, run.published_hours) for run in runs)
    axis.set_xlim(smallest / 2, largest * 2.5)
    axis.set_xlabel("device hours")
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    said = "; ".join(f"{run.run.name} {run.off_by}" for run in runs)
    return Picture(figure, f"device hours, predicted against published: {said}")


def goodput_by_interval(
    minutes: Sequence[float], kept: dict[str, Sequence[float]], best: dict[str, float] | None = None
) -> Picture:
    """Share of the time kept by minutes between saves; a line for each name, a mark at its best interval."""
    figure, axis = new_figure(6.4, 3.0)
    for number, (name, shares) in enumerate(kept.items()):
        (line,) = axis.plot(minutes, [100 * share for share in shares], label=name)
        line.set_color((MEASURED, LIMIT, "#009E73", "#CC79A7")[number % 4])
        if best and name in best:
            axis.axvline(best[name], color=line.get_color(), linestyle=":", linewidth=1.2)
    axis.set_xscale("log")
    axis.set_xlabel("minutes between two saves (dotted: Young's interval)")
    axis.set_ylabel("% of the time kept")
    axis.legend(fontsize=8, frameon=False)
    tops = {name: max(shares) for name, shares in kept.items()}
    return Picture(figure, "time kept at best: " + ", ".join(f"{n} {s:.1%}" for n, s in tops.items()))
