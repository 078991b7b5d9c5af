"""The bubble of real ranks: what two of them idle in a pipeline step, beside what the schedule says.

    python -m benchmarks.bubble                three launches, the table
    python -m benchmarks.bubble --launches 1   a quicker look
    python -m benchmarks.bubble --json OUT     also write the rows

Two gloo ranks run each schedule six times a launch, in turns (`bubble_rank.py`). Of all tries the quickest is
told: it is the one that the rest of the machine disturbed least, and which one that is does not ask about the
bubble. Beside its idle share stands that of its replay: the same actions with the same seconds, played by the
simulator, which knows when an action may start and nothing else. What the ranks idle more is messages under
way, and cores that somebody else had. `unrest` says how much longer than the quickest the median try took.

Wants two quiet cores, so it is no test. What does not depend on them is one: that ranks act in the order of
the schedule, and never before what they wait for (`tests/parallel/test_pipeline.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median

from workshop import launch
from workshop.predict.pipeline.measured import measured_timeline, replayed
from workshop.predict.pipeline.simulate import PipelineTimeline

PROGRAM = Path(__file__).parent / "bubble_rank.py"


@dataclass(frozen=True)
class Row:
    """One schedule: idle shares are of all ranks' time in the quickest try, seconds are those of its step."""

    schedule: str
    measured: float
    simulated: float
    seconds: float
    unrest: float

    @property
    def apart(self) -> float:
        """Measured above simulated, as a share of the latter."""
        return self.measured / self.simulated - 1


def timelines(launches: int) -> dict[str, list[PipelineTimeline]]:
    """By schedule, every try of so many launches of two ranks."""
    tries: dict[str, list[PipelineTimeline]] = {}
    for _ in range(launches):
        ranks = launch.torchrun(launch.Script(PROGRAM), 2, limits=launch.Limits(timeout=300))
        for schedule, first in ranks[0].tries.items():
            for once in zip(first, ranks[1].tries[schedule], strict=True):
                began = [own["began"] for own in once]
                timeline = measured_timeline([own["events"] for own in once], began)
                tries.setdefault(schedule, []).append(timeline)
    return tries


def row_of(schedule: str, tries: Sequence[PipelineTimeline]) -> Row:
    """The quickest of the tries, beside its replay."""
    quickest = min(tries, key=lambda timeline: timeline.seconds)
    unrest = median(timeline.seconds for timeline in tries) / quickest.seconds - 1
    return Row(schedule, quickest.idle_share, replayed(quickest).idle_share, quickest.seconds, unrest)


def table(rows: Sequence[Row]) -> str:
    """All rows, in the order in which they were run."""
    lines = [f"{'schedule':<14} measured idle   simulated    apart   ms a step   unrest"]
    for row in rows:
        lines.append(
            f"{row.schedule:<14} {row.measured:13.1%} {row.simulated:11.1%} {row.apart:+8.1%}"
            f" {1e3 * row.seconds:11.0f} {row.unrest:8.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--launches", type=int, default=3, help="how often ranks are started (default: 3)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    how = parser.parse_args()
    rows = [row_of(schedule, tries) for schedule, tries in timelines(how.launches).items()]
    print(table(rows))
    if how.json:
        command = " ".join(["python -m benchmarks.bubble", *sys.argv[1:]])
        record = {
            "date": date.today().isoformat(),
            "command": command,
            "results": [{**asdict(row), "apart": row.apart} for row in rows],
        }
        how.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
