"""A rehearsal that is a fork is the rehearsal of a new Python: same answer, same errors, nothing stays behind."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import wait_until
from workshop.rehearse import RehearsalError, process, rehearse, run
from workshop.rehearse.request import Request

PROGRAM = """
import os, random, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
print(random.random(), torch.initial_seed(), sys.argv, os.getcwd(), sys.path[0] == os.getcwd())
print("to stderr", file=sys.stderr)
for _ in range(3):
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLEEPER = """
import os, pathlib, time
pathlib.Path("pid").write_text(str(os.getpid()))
print("begun", flush=True)
time.sleep(600)
"""


def gone(pid):
    """Whether there is no such process, or only what is left of it until its parent looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_fork_answers_what_a_new_python_answers(monkeypatch):
    rehearsed = {}
    for child in (process.new_python, process.fork, process.fork):
        monkeypatch.setattr(run, "child", child)
        rehearsed.setdefault(child.__name__, []).append(rehearse(PROGRAM, 512, 3))
    (cold,), (first, second) = rehearsed.values()
    for warm in (first, second):
        assert warm.traffic == cold.traffic
        assert warm.memory.step_peaks == cold.memory.step_peaks
        assert (warm.flops, warm.notes, warm.alarms) == (cold.flops, cold.notes, cold.alarms)
        assert warm.output.split()[2:] == cold.output.split()[2:]
        assert warm.seconds["import"] < cold.seconds["import"]
    for before, after in zip(first.output.split()[:2], second.output.split()[:2], strict=True):
        assert before != after, "random numbers are seeded anew, as in a new Python"


def test_a_new_module_and_a_new_variable_reach_the_next_rehearsal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "import os, mine\nprint(mine.VALUE, os.environ.get('MINE'))\nraise SystemExit(3)\n"
    for value in ("one", "another"):
        (tmp_path / "mine.py").write_text(f"VALUE = {value!r}\n")
        (tmp_path / "__pycache__").mkdir(exist_ok=True)
        os.utime(tmp_path / "mine.py", (len(value), len(value)))  # a second is the clock of a cached module
        monkeypatch.setenv("MINE", value * 2)
        with pytest.raises(RehearsalError) as ended:
            rehearse(program, 2)
        assert ended.value.output == f"{value} {value * 2}\n"


def test_a_process_that_aborts_is_told_with_its_last_words():
    with pytest.raises(RehearsalError, match=r"exit code -6.*\n.*aborted on purpose"):
        rehearse("import os, sys\nprint('aborted on purpose', file=sys.stderr)\nos.abort()\n", 2)


def test_it_is_ended_in_time_with_what_it_wrote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = Request(world_size=2, source=SLEEPER, timeout_seconds=600)
    Path("request.json").write_text(request.to_json())
    rehearse(PROGRAM, 2)  # the server is there
    with pytest.raises(subprocess.TimeoutExpired) as late:
        process.fork(["request.json", "answer.json"], 10.0)
    assert late.value.stdout == b"begun\n"
    wait_until(lambda: gone(int(Path("pid").read_text())))


def test_two_at_a_time_share_a_server():
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda size: rehearse(PROGRAM, size), (2, 4)))
    assert [one.world_size for one in both] == [2, 4]
    (server,) = process._running
    rehearse(PROGRAM, 2)
    assert process._running == [server]


def test_a_server_that_was_killed_is_replaced():
    rehearse(PROGRAM, 2)
    (server,) = process._running
    server.process.kill()
    server.process.wait(30)
    assert rehearse(PROGRAM, 2).steps == 2
    assert process._running[0] is not server


def test_what_torch_reads_at_import_gets_a_server_of_its_own(monkeypatch):
    rehearse(PROGRAM, 2)
    (before,) = process._running
    monkeypatch.setenv("TORCH_LOGS", "-all")
    rehearse(PROGRAM, 2)
    (after,) = process._running
    assert before is not after
    assert before.process.poll() == 0, "the old one has left"


def test_nothing_is_left_when_the_notebook_goes(tmp_path):
    """Killed while its rehearsal sleeps: the server, the fork that waits and the one that sleeps all go."""
    cells = (
        f"from workshop.rehearse import process, rehearse\nrehearse({PROGRAM!r}, 2)\n"
        f"print(process._running[0].process.pid, flush=True)\nrehearse({SLEEPER!r}, 2)\n"
    )
    command = [sys.executable, "-c", cells]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # what is killed cannot tidy up
    notebook = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    with notebook:
        server = int(notebook.stdout.readline())
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        notebook.kill()
    wait_until(lambda: gone(server) and gone(int((tmp_path / "pid").read_text())))


def test_where_there_can_be_no_server_a_new_python_rehearses(monkeypatch):
    process.end_server()
    monkeypatch.setattr(process, "_SERVER", "no.such.module")
    assert rehearse(PROGRAM, 2).steps == 2
    process.end_server()


def test_a_script_that_rehearses_its_own_function_at_its_top_is_told_so(tmp_path):
    """Its file is imported in the rehearsal, whose import asks for a rehearsal: without end, once."""
    script = tmp_path / "own.py"
    script.write_text(
        "from workshop.rehearse import rehearse\n\ndef step():\n    pass\n\nprint(rehearse(step, 8).peak_bytes)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'call rehearse() below if __name__ == "__main__":' in done.stderr
    assert done.stderr.count("RehearsalError: ") <= 2  # the script's own, and the rehearsal's within it


def test_a_rehearsal_sees_no_gpu(monkeypatch):
    """CUDA answers once before the fork, and never after it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    program = "import os\nprint('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))\n" + PROGRAM
    assert "sees ''" in rehearse(program, 8).output
