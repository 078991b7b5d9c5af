"""Rehearsed against measured: peak memory and traffic of many training programs on real gloo ranks.

    python benchmarks/rehearse.py                 # all configurations, prints the table
    python benchmarks/rehearse.py --only fsdp     # those whose name contains "fsdp"
    python benchmarks/rehearse.py --json OUT      # also write the rows

Each program (`benchmarks/rehearsed/train.py` with options) runs for six steps on two or four gloo ranks of
this machine; its peak is read from torch's own allocator events. Then it is rehearsed for two steps as the
same rank, with the copies of gloo counted. Both count collectives, and their payloads must be equal to the
byte.

The peak of a real step wanders upwards when gloo's thread is late to drop a copy it no longer needs (it
depends on who else uses the machine). What the program needs is the smallest peak among the steps after the
first, and that is what a rehearsed step is compared with. `late` says how much higher the highest of those
steps came out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop import launch
from workshop.rehearse import RehearsalError, rehearse

HERE = Path(__file__).resolve().parent
CONFIGURATIONS = """
2 --layout ddp
2 --layout ddp --model llama --recompute
2 --layout ddp --model gpt2 --optimizer sgd
2 --layout ddp --dtype bf16 --size wide
2 --layout ddp --accumulate 3 --size deep
2 --layout ddp --model llama --dtype bf16 --optimizer sgd --batch 8
4 --layout ddp --size wide --recompute
2 --layout ddp-view --size deep
2 --layout ddp-view --model gpt2 --recompute --accumulate 2
2 --layout zero1
2 --layout zero1 --model llama --size wide --recompute
4 --layout zero1 --model gpt2 --size deep
2 --layout fsdp
2 --layout fsdp --recompute --size wide
2 --layout fsdp --model llama --dtype mixed --size deep
2 --layout fsdp --model llama --dtype mixed --optimizer sgd --recompute
2 --layout fsdp --model gpt2 --size wide
2 --layout fsdp --dtype bf16 --accumulate 2
4 --layout fsdp --size deep --recompute --optimizer sgd
4 --layout fsdp --model gpt2 --dtype mixed --batch 2
2 --layout fsdp-zero2 --size wide
2 --layout fsdp-zero2 --model llama --recompute --dtype mixed
4 --layout hsdp --size deep
4 --layout hsdp --model llama --dtype bf16 --recompute
2 --layout tp
2 --layout tp --model llama --dtype bf16 --size wide
2 --layout tp --recompute --size deep --optimizer sgd
2 --layout tp-sp
4 --layout tp-sp --size deep --recompute
4 --layout gpipe --size deep --accumulate 4
4 --layout 1f1b --size deep --accumulate 8 --batch 8
2 --layout 1f1b --size wide --accumulate 4 --optimizer sgd
1 --layout none --size wide
1 --layout none --model llama --recompute --accumulate 2 --dtype bf16
1 --layout none --model gpt2 --size deep --optimizer sgd
2 --layout deepspeed1 --dtype bf16
2 --layout deepspeed2 --dtype bf16 --size deep
2 --layout deepspeed3 --dtype bf16
2 --layout deepspeed3 --dtype bf16 --model llama --size wide
"""


@dataclass(frozen=True)
class Row:
    """One configuration: measured and rehearsed peak of one rank, and whether every collective agreed."""

    name: str
    rank: int
    measured_bytes: int
    highest_bytes: int
    rehearsed_bytes: int
    traffic_agrees: bool | None
    rehearse_seconds: float

    @property
    def error(self) -> float:
        """Rehearsed over measured, minus one."""
        return self.rehearsed_bytes / self.measured_bytes - 1

    @property
    def late(self) -> float:
        """How far the highest step was above the lowest."""
        return self.highest_bytes / self.measured_bytes - 1


def run_for_real(program: Path, world_size: int, arguments: list[str]) -> list[dict[str, Any]]:
    """Measure the program on `world_size` gloo ranks; one dict a rank."""
    with tempfile.TemporaryDirectory() as folder:
        script = launch.Script(
            HERE / "rehearsed" / "measure_rank.py", (folder, str(program), *map(str, arguments))
        )
        try:
            launch.torchrun(script, world_size, limits=launch.Limits(timeout=300))
        except launch.RankFailed as error:
            raise RuntimeError(f"{program.name} {' '.join(arguments)}, on real ranks: {error}") from None
        return [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def compare(line: str, ranks: list[int] | None = None) -> list[Row]:
    """Measure and rehearse one configuration; a row for each rank asked for (the first and the last)."""
    world, *arguments = line.split()
    world_size = int(world)
    program = HERE / "rehearsed" / ("train_deepspeed.py" if "deepspeed" in line else "train.py")
    measured = run_for_real(program, world_size, arguments)
    rows = []
    for rank in ranks or sorted({0, world_size - 1} if "pipe" in line or "1f1b" in line else {0}):
        played = rehearse(program, world_size, rank, gloo=True, arguments=tuple(arguments))
        agrees = None
        if world_size > 1:
            theirs, ours = measured[rank]["traffic"], [vars(row) for row in played.traffic]
            agrees = sorted(map(str, theirs)) == sorted(map(str, ours))
            if not agrees:
                print("  real     ", theirs, "\n  rehearsed", ours)
        peaks = measured[rank]["memory"]["step_peaks"][1:]
        rehearsed = played.memory.step_peaks[-1]
        rows.append(Row(line, rank, min(peaks), max(peaks), rehearsed, agrees, played.seconds["run"]))
    return rows


def show(rows: list[Row]) -> None:
    """Median, worst, and how many configurations agree on every collective."""
    errors = [abs(row.error) for row in rows]
    traffic = [row.traffic_agrees for row in rows if row.traffic_agrees is not None]
    print(
        f"{len(rows)} rows: median error {statistics.median(errors):.4%}, worst {max(errors):.4%}; "
        f"collectives equal in {sum(traffic)} of {len(traffic)}"
    )


def main() -> None:
    """Run what was asked for and print it as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    rows: list[Row] = []
    print(f"{'ranks, options':<66} rank measured MB rehearsed MB    error    late traffic  s")
    for line in CONFIGURATIONS.strip().splitlines():
        if options.only not in line:
            continue
        try:
            new = compare(line)
        except (RehearsalError, RuntimeError) as problem:
            print(f"{line}\n  {problem}")
            continue
        for row in new:
            words = {None: "-", True: "equal", False: "DIFFERS"}[row.traffic_agrees]
            print(
                f"{row.name:<66} {row.rank:>4} {row.measured_bytes / 1e6:11.4f} "
                f"{row.rehearsed_bytes / 1e6:12.4f} "
                f"{row.error:+8.4%} {row.late:7.3%} {words:>7} {row.rehearse_seconds:.1f}",
                flush=True,
            )
        rows += new
    if rows:
        show(rows)
    if options.json:
        Path(options.json).write_text(json.dumps([vars(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
