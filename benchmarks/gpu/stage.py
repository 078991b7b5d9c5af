"""A stage of the GPU day: parts that run one after another, each written down as soon as it has ended.

    def run(stage):
        stage.part("copy", lambda: [row("device to device", 4.3e12, "B/s", predicted=4.8e12)])

A part that raises is recorded with its last words, and the next one runs. A part that is in the record from
an earlier start is not run again, so a stage whose time was up goes on where it ended; nor is one in which
the process itself ended (a hang that was cut, a fault of the GPU). A part gets the size it is to run at:
``full`` on a GPU; ``toy`` (`make gpu DRY=1`) and ``ci`` on a CPU, where they prove that the code walks, and
nothing about a GPU.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import commit, machine

SIZES = ("full", "toy", "ci")
PACKAGES = (
    "torch triton transformers accelerate peft lightning torchao bitsandbytes deepspeed transformer_engine "
    "numpy ipykernel"
).split()
Row = dict[str, Any]
Part = dict[str, Any]  # its status, its rows, and what it says of its run
ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    *((f"{sys.prefix}/", "PYTHON/"), (f"{ROOT}/", ""), (str(ROOT), ".")),
    *((f"{tempfile.gettempdir()}/", "TMPDIR/"), (f"{Path.home()}/", "HOME/")),
)
QUEUED_CYCLES = 2_000_000  # a millisecond of a GPU's clock: longer than Python takes to launch most calls


def row(what: str, measured: float | None, unit: str, predicted: float | None = None, **more: Any) -> Row:
    """One line of the table: what was measured, and what was predicted where something was.

    more: ``wanted``, where a goal was set before the run; and whatever else belongs to the line.
    """
    return {"what": what, "measured": measured, "unit": unit, "predicted": predicted, **more}


class NotHere(RuntimeError):
    """This part cannot run on this machine; the sentence says why. It is recorded as left out."""


class Stage:
    """One stage under way. ``record`` is what its file holds; ``device`` a GPU, or the CPU in a dry run.

    together: parts that want the machine for themselves are run beside the others all the same.
    """

    def __init__(self, name: str, folder: Path, size: str, seconds: float, together: bool = False) -> None:
        self.name, self.size, self.folder, self.together = name, size, folder, together
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.deadline = time.monotonic() + seconds
        self.path = folder / f"{name}.json"
        self.record: dict[str, Any] = self._opened()

    def _opened(self) -> dict[str, Any]:
        earlier = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        if earlier and (earlier["size"], earlier["device"]) != (self.size, device_name()):
            raise ValueError(
                f"{self.path} is a record of size {earlier['size']} on {earlier['device']}, and this is "
                f"{self.size} on {device_name()}: name another --folder, or take that file away"
            )
        about = {
            "stage": self.name,
            "size": self.size,
            "device": device_name(),
            "date": date.today().isoformat(),
            "commit": _commit(),
            "machine": machine(PACKAGES),
            "status": "running",
        }
        parts = earlier.get("parts", {})
        return {
            **about,
            "parts": {name: {**about_the_run(earlier), **part} for name, part in parts.items()},
        }

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    def sized(self, full: Any, toy: Any, ci: Any = None) -> Any:
        """The value for this size; what CI does where nothing is named is the toy's."""
        return {"full": full, "toy": toy, "ci": toy if ci is None else ci}[self.size]

    def left(self) -> float:
        """Seconds until this stage's time is up."""
        return self.deadline - time.monotonic()

    def is_settled(self, name: str) -> bool:
        """Whether this part has had its turn in an earlier start and gets no other. One that failed does."""
        return self.record["parts"].get(name, {}).get("status") in ("done", "left out", "ended us")

    def part(
        self, name: str, work: Callable[[], list[Row]], needs: float = 5.0, earlier: Part | None = None
    ) -> bool:
        """Run a part and write it down; False where its time did not come.

        needs: seconds it may take. earlier: the record of a part that has another turn. It stays until that
        begins, and unless that ends well; where it is ``outdated``, told by the code of another day, a turn
        that has begun takes its place however it ends.
        """
        if earlier is None and self.is_settled(name):
            return True
        if self.record["parts"].get(name, {}).get("status") == "running":
            self._note_what_ended_us(name)
            return True
        if self.left() < needs:
            self.record["status"] = "time is up"
            self.write()
            return False
        kept = None if earlier is None or earlier.get("outdated") else earlier
        self._keep(name, {"status": "running", "rows": [], **({"earlier": kept} if kept else {})})
        ended = self._ended(work)
        self._keep(name, kept if kept and ended["status"] != "done" else ended)
        ending = f"{ended['status']} {ended.get('why', '')} {ended['seconds']} s"
        print(f"[{self.name}] {name}: {ending}", flush=True)
        if self.on_gpu:
            try:
                forget_everything()
            except RuntimeError:  # the GPU's own fault: nothing more runs in this process
                self._keep(name, {**kept, "alone": "ended us"} if kept else {**ended, "status": "ended us"})
                raise
        return True

    def _keep(self, name: str, part: Part) -> None:
        """Write the record, with this part in it."""
        self.record["parts"][name] = part
        self.write()

    def _note_what_ended_us(self, name: str) -> None:
        """An earlier process ended in this part: a hang, or the GPU's own fault."""
        earlier = self.record["parts"][name].get("earlier")
        why = "the process of this stage ended while this part ran; --again tries it once more"
        ended = {"status": "ended us", "why": why, "rows": []}
        self._keep(name, {**earlier, "alone": "ended us"} if earlier else ended)

    def _ended(self, work: Callable[[], list[Row]]) -> Part:
        """How a part ended, its lines or its last words, and when."""
        began = time.perf_counter()
        ended: Part
        try:
            ended = {"status": "done", "rows": work()}
        except NotHere as why:
            ended = {"status": "left out", "why": str(why), "rows": []}
        except Exception as error:  # noqa: BLE001 whatever a part dies of is what its record is for
            last = traceback.format_exc().strip().splitlines()[-6:]
            why = f"{type(error).__name__}: {error}"[:2100]
            ended = {"status": "failed", "why": why, "trace": last, "rows": []}
        return {**ended, "seconds": round(time.perf_counter() - began, 2), **about_the_run(self.record)}

    def end(self) -> None:
        """All parts have had their turn, unless time was up."""
        if self.record["status"] == "running":
            bad = ("failed", "ended us")
            failed = [name for name, part in self.record["parts"].items() if part["status"] in bad]
            self.record["status"] = "done, with failures" if failed else "done"
        self.write()

    def write(self) -> None:
        """The record as it is now, in one step: whoever kills us finds the last whole one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(_plain(self.record), indent=1) + "\n", "utf-8")
        unfinished.replace(self.path)


def about_the_run(record: dict[str, Any]) -> dict[str, Any]:
    """What a part says of its own run, for a record that is gone on with on another day."""
    known = {
        "date": record["date"],
        "commit": record.get("commit"),
        "torch": record["machine"]["versions"]["torch"],
    }
    return {**known, **({"note": record["note"]} if record.get("note") else {})}


def without_places(text: str) -> str:
    """A text without this machine's folders: a record is read elsewhere."""
    for place, name in PLACES:
        text = text.replace(place, name)
    return text


def _plain(value: Any) -> Any:
    """JSON has no word for infinite or not a number: None."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return without_places(value)
    if hasattr(value, "item"):  # numpy's and torch's numbers
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _commit() -> str | None:
    """The commit, or None where the tree came without its history."""
    try:
        return commit()
    except (OSError, ValueError):
        return None
    except Exception as error:  # noqa: BLE001 git's own refusals are subprocess errors
        return f"unknown ({type(error).__name__})"


def device_name() -> str:
    """The GPU's name, or cpu."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def catalogue_name() -> str:
    """This GPU's name in the catalogue of devices; NotHere where it is in none."""
    from workshop.facts.catalogue import devices

    here = device_name().upper().replace(" ", "-")
    fitting = [name for name in devices() if name.upper() in here]
    if not fitting:
        raise NotHere(f"{device_name()} is not in the catalogue of devices: nothing to predict with")
    return max(fitting, key=len)


def forget_everything() -> None:
    """Hand the allocator's memory back, so that the next part begins with an empty GPU."""
    import gc

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def seconds_of(work: Callable[[], Any], repeats: int = 20, warm: int = 3, device: str = "") -> float:
    """Median seconds of a call: by CUDA events around each on a GPU, by the clock elsewhere.

    On an idle GPU the first event is done before Python has launched the call, and a short kernel would be
    told with its launch. So the GPU sleeps first, while all calls queue up behind it. That does not help a
    call that waits for the device, nor where more is launched than the queue holds (about a thousand).
    """
    for _ in range(warm):
        work()
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind != "cuda":
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return statistics.median(times)
    torch.cuda.synchronize()
    torch.cuda._sleep(QUEUED_CYCLES * min(repeats, 50))
    pairs = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in pairs) / 1e3
