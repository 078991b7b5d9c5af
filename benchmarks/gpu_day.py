"""`make gpu`: all that a short time on a GPU can tell, in order of worth, each stage bounded and restartable.

    make gpu                                  every stage; records in data/measurements/gpu
    make gpu DRY=1                            the same walk on a CPU at toy sizes; proves that it walks
    python -m benchmarks.gpu_day device fp8   these stages, where one command may last minutes only
    python -m benchmarks.gpu_day --rehearse   before, on any CPU: what `memory` is compared with
    python -m benchmarks.gpu_day --table      the records as one table
    python -m benchmarks.gpu_day --take F     take in the records that came back as `gpu_day.tar.gz`

A stage runs in a process of its own with a time limit (8 minutes). When it is up, the stage and all that it
started are ended; what it has measured is written. A stage that a fault of the GPU has ended starts again
with the part that comes next. The next command goes on likewise, tries parts that failed once more, and
passes over a stage whose parts are all done. The variable OUT names a folder that comes back from a lent
machine: all records and executed notebooks go there as one archive, again and again while they grow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "data" / "measurements" / "gpu"
# In order of worth: what other stages are judged by, the targets (MFU, FP8, memory), then the rest.
STAGES = ("device", "throughput", "fp8", "memory", "around", "kernels", "quantized", "serving", "lessons")
SECONDS = 480.0
STARTS_AGAIN, WORTH_A_START = 3, 60.0  # times, where so many seconds are left
ARCHIVE = "gpu_day.tar.gz"


def record_of(folder: Path, name: str) -> dict[str, Any]:
    """A stage's record; without parts where it has not begun."""
    path = folder / f"{name}.json"
    if path.exists():
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return record
    return {"stage": name, "status": "not begun", "parts": {}, "size": "?", "device": "?", "date": "?"}


def is_done(folder: Path, name: str) -> bool:
    """Whether a record says that every part had its turn, and none failed."""
    return bool(record_of(folder, name)["status"] == "done")


def run_on(name: str, how: argparse.Namespace, seconds: float) -> str:
    """`run_stage`, and again where a fault ended its process in one of its parts; how the last one ended.

    The record passes over the part that ended it. One that ends before any part begins would end so again.
    """
    deadline = time.monotonic() + seconds
    before = record_of(how.folder, name)["parts"]
    ended = run_stage(name, how, seconds)
    for _ in range(STARTS_AGAIN):
        after = record_of(how.folder, name)["parts"]
        left = deadline - time.monotonic()
        if not ended.startswith("ended with") or after == before or left < WORTH_A_START:
            break
        print(f"{name}: {ended}; it starts again with what comes next", flush=True)
        before, ended = after, run_stage(name, how, left)
    return ended


def run_stage(name: str, how: argparse.Namespace, seconds: float) -> str:
    """One stage in a process group of its own; how it ended, in a word."""
    command = [
        *[sys.executable, "-m", "benchmarks.gpu", name, "--folder", str(how.folder)],
        *["--size", how.size, "--seconds", str(max(1.0, seconds - 10))],
        *(["--together"] if how.together else []),
    ]
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
    if how.size != "full":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    deadline = time.monotonic() + seconds
    try:
        while child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(min(20.0, max(0.1, deadline - time.monotonic())))
            carry_out(how.folder)
    finally:
        late = child.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    ended = "time is up" if late else "" if child.returncode == 0 else f"ended with {child.returncode}"
    if ended:
        note_end(how.folder, name, ended)
    carry_out(how.folder)
    return ended or "ran"


def note_end(folder: Path, name: str, ended: str) -> None:
    """A stage that did not end by itself: its record says so, and keeps what it has."""
    record = {**record_of(folder, name), "status": ended}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def carry_out(folder: Path) -> None:
    """All records as one archive in OUT, where that is set."""
    out = os.environ.get("OUT")
    if not out or not folder.exists():
        return
    target = Path(out, ARCHIVE)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target.with_suffix(".part"), "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".json", ".ipynb", ".txt"):
                archive.add(path, str(path.relative_to(folder)))
    target.with_suffix(".part").replace(target)


def take_in(archive: Path, folder: Path) -> None:
    """Unpack what `carry_out` made over the records there are, those of another card left alone.

    A tree that travels without its history cannot say which commit it is. This one can, and it is the same:
    records are taken in before anything is changed. Raises ValueError for what is no file below ``folder``.
    """
    from benchmarks.machine import commit

    with tarfile.open(archive) as packed:
        cards = [
            json.loads(content.read()).get("device")
            for member in packed
            if member.name.removesuffix(".json") in STAGES and (content := packed.extractfile(member))
        ]
    folder = folder_for(folder, next(iter(cards), None))
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:  # file by file: `extractall` knows its filters since Python 3.11.4
        for member in packed:
            content, path = packed.extractfile(member), (folder / member.name).resolve()
            if content is None or not path.is_relative_to(folder.resolve()):
                raise ValueError(f"{archive.name} holds {member.name!r}, which is no file below {folder}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
        names = [name for name in packed.getnames() if "/" not in name and name.endswith(".json")]
    for path in (folder / name for name in names):
        record = json.loads(path.read_text("utf-8"))
        for entry in (record, *record.get("parts", {}).values()):
            if not entry.get("commit") or entry["commit"].startswith("unknown"):
                entry["commit"] = commit()
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def rehearse(how: argparse.Namespace) -> int:
    """Rehearse here what the memory stage will measure, where that stage looks for it; 1 if one is lost."""
    from benchmarks.gpu.memory import REHEARSED, rehearse_before

    path = how.folder / REHEARSED
    wanted, answered = rehearse_before(path, how.size, how.seconds)
    print(f"{path}: {answered} of {wanted} configurations are rehearsed")
    return int(answered < wanted)


def gpu_name() -> str:
    """The GPU that torch takes, asked in a process that ends: this one shall hold no context; "" for none."""
    ask = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    return done.stdout.strip()


def folder_for(folder: Path, device: str | None) -> Path:
    """Where this card's records go: a folder of its own below, if those that are there are another card's."""
    there = {record_of(folder, name).get("device") for name in STAGES}
    return folder / device.replace(" ", "-") if device and there - {"?", None, device} else folder


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], help="which; all of them by default")
    parser.add_argument("--size", choices=("full", "toy", "ci"), default="full")
    parser.add_argument("--folder", type=Path, default=RECORDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of a stage")
    parser.add_argument("--within", type=float, default=0, help="seconds for all; 0: no limit")
    parser.add_argument("--again", action="store_true", help="forget the records of these stages first")
    parser.add_argument("--together", action="store_true", help="also those lessons that want to be alone")
    parser.add_argument("--table", action="store_true", help="show the records, run nothing")
    parser.add_argument("--rehearse", action="store_true", help="rehearse here what `memory` will measure")
    parser.add_argument("--take", type=Path, metavar="ARCHIVE", help="take in records that came back")
    return parser.parse_args(words)


def main() -> int:
    """Run what was asked for; 1 where a stage failed or ran out of time."""
    how = arguments()
    sys.path.insert(0, str(ROOT))
    from benchmarks.gpu.table import table

    if how.take:
        take_in(how.take, how.folder)
    if how.table or how.take:
        print(table(how.folder))
        return 0
    if how.rehearse:
        return rehearse(how)
    if how.size == "full":
        if not (device := gpu_name()):
            print("there is no GPU here that torch can use. `make gpu DRY=1` walks the stages on the CPU.")
            return 1
        how.folder = folder_for(how.folder, device)
        print(f"records of {device}: {how.folder}", flush=True)
    began, bad = time.monotonic(), 0
    for name in how.stages or STAGES:
        if how.again:
            (how.folder / f"{name}.json").unlink(missing_ok=True)
        if is_done(how.folder, name):
            print(f"{name}: done already", flush=True)
            continue
        left = how.within - (time.monotonic() - began) if how.within else how.seconds
        if left < 20:
            print(f"{name}: no time is left; start again to go on", flush=True)
            bad += 1
            continue
        ended = run_on(name, how, min(how.seconds, left))
        print(f"{name}: {ended}", flush=True)
        bad += not is_done(how.folder, name)
    print(table(how.folder))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
