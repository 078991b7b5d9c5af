"""Dead ends on a GPU that a source shows: found in bad examples, and in lessons and package only where a reason stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import loaded_engine, warm_python
from tools.gpu_rules import cells, dead_ends, lesson_dead_ends

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks" / "source").rglob("*.py"))
# What stays in the package, and why it is none.
PACKAGE = {
    "pipeline.py": "isend or irecv outside a batch",  # a group for each direction: no rank's sends wait on its receives
    "group.py": "gloo by name",  # an exercise is checked on the CPU's small tensors
    "machine.py": "gloo by name",  # gloo is what it measures
}
# What stays in lessons: to be looked at on the day there is a GPU.
OF_LESSONS = {
    "32_pipeline": "gloo by name",  # its measured Gantts are of CPU ranks; on GPUs `pipeline._now` would time them
    "61_slurm_and_apptainer": "gloo by name",  # a job on the login node
    "53_quantization": "a clock that never waits for the device",  # CPU only
    "63_checkpoints": "a clock that never waits for the device",  # around a save, which brings all to the host
    "55_pruning": "a clock that never waits for the device",  # CPU only
}
BAD = {
    "isend or irecv outside a batch": "work = dist.isend(x, 1)\nwork.wait()\n",
    "a clock that never waits for the device": (
        "def timed(model, x):\n    start = time.perf_counter()\n    model(x).sum().backward()\n"
        "    return time.perf_counter() - start\n"
    ),
    "a step that waits for the device": "for x in data:\n    loss = model(x)\n    loss.backward()\n    losses.append(loss.item())\n",
    "gloo by name": "dist.init_process_group('gloo')\n",
    "an accelerator that may not be there": "device = torch.accelerator.current_accelerator() or 'cpu'\n",
    "a question to CUDA at import": "class Here:\n    gpu = torch.cuda.is_available()\n",
}
GOOD = (
    "ops = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, y, 1)]\n",
    "def timed(model, x):\n    start = time.perf_counter()\n    model(x)\n    torch.cuda.synchronize()\n    return time.perf_counter() - start\n",
    "for x in data:\n    model(x).backward()\nprint(loss.item())\n",
    "for way in ways:\n    for x in data:\n        model(x).backward()\n    print(loss.item())\n",
    "dist.init_process_group()\n",
    "a = torch.accelerator\nb = [a.current_accelerator(True), a.current_accelerator(check_available=True)]\n",
    "def gpu():\n    return torch.cuda.is_available()\nask = lambda: torch.accelerator.is_available()\n",
)
# A new Python, in which asking CUDA is written down.
ASKED = """
import importlib, sys, torch
for owner in (torch.cuda, torch.accelerator):
    for name in ("is_available", "device_count"):
        truth = getattr(owner, name)
        def told(*args, truth=truth, **kwargs):
            frame = sys._getframe(1)
            print(frame.f_code.co_filename, frame.f_lineno)
            return truth(*args, **kwargs)
        setattr(owner, name, told)
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


@pytest.mark.parametrize("what", BAD)
def test_a_dead_end_is_found(what):
    assert [line.split(": ")[1] for line in dead_ends(BAD[what], "bad", imported=True)] == [what]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_none_is_left_alone(text):
    assert dead_ends(text, "good", imported=True) == []


def test_the_package_has_none_but_those_with_a_reason():
    found = []
    for path in sorted((ROOT / "workshop").rglob("*.py")):
        if path.name in ("stub.py", "answers.py"):
            continue  # what people get wrong, or right on the CPUs where it is checked
        said = dead_ends(path.read_text("utf-8"), path.name, imported=True)
        found += [line for line in said if PACKAGE.get(path.name) != line.split(": ")[1]]
    assert found == []


def test_nobody_asks_cuda_while_what_ranks_are_forks_of_is_imported():
    """CUDA would tell each of these forks that it cannot begin again."""
    modules = [*warm_python.PRELOADED, *loaded_engine.OURS, "workshop.launch.child.preload"]
    told = subprocess.run([sys.executable, "-c", ASKED, *modules], cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout == ""


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_sends_in_batches_and_its_clocks_wait(lesson):
    assert sum(1 for _ in cells(lesson)) > 5
    found = [line for line in lesson_dead_ends(lesson) if "a step that waits" not in line]
    assert [line for line in found if OF_LESSONS.get(lesson.stem) != line.split(": ")[1]] == []
