"""Programs as others write them, rehearsed unchanged and measured on real gloo ranks.

Every row of the table is a program of `programs/` in the manner of a well-known project. All are measured by one
pair of ranks that imports torch and transformers once and forks for each (`measure_programs.py`); meanwhile the
rehearsals run. A rehearsal is right to 0.1 % or it says which line it cannot rehearse.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import warm_python
from workshop.rehearse import Rehearsal, RehearsalError, rehearse

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
WORLD = 2
TABLE = (
    "char_gpt.py --device=cpu",
    "tied_gpt2.py",
    "hf_trainer.py",
    "accelerate_loop.py",
    "fsdp2_meta.py",
    "tp_mesh_first.py",
    "grid_of_groups.py",
    "drop_path_vit.py",
    "hf_experts.py",
)


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def measure_all(folder: Path) -> list[subprocess.Popen]:
    """Start both ranks."""
    lines = [f"{PROGRAMS}/{line}" for line in TABLE]
    command = [
        sys.executable,
        str(HERE / "measure_programs.py"),
        str(folder),
        *free_ports(len(lines)),
        "--",
        *lines,
    ]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    return [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=(folder / f"output-{rank}").open("w"),
            stderr=subprocess.STDOUT,
        )
        for rank in range(WORLD)
    ]


def rehearse_line(line: str) -> Rehearsal | RehearsalError:
    """The last rank of the table's world."""
    program, *arguments = line.split()
    try:
        return rehearse(
            PROGRAMS / program, WORLD, WORLD - 1, arguments=tuple(arguments), gloo=True, timeout_seconds=300
        )
    except RehearsalError as error:
        return error


@contextlib.contextmanager
def warm():
    """Rehearsals as forks, for a fixture that lives longer than a test."""
    cold = subprocess.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            subprocess,
            "run",
            lambda command, **options: (warm_python.run if warm_python.CHILD in command else cold)(
                command, **options
            ),
        )
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Measured and rehearsed, by line of the table."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("measured")
    ranks = measure_all(folder)
    try:
        with warm(), ThreadPoolExecutor(2) as pool:
            rehearsed = list(pool.map(rehearse_line, TABLE))
        for rank in ranks:
            rank.wait(timeout=600)
    finally:
        for rank in ranks:
            rank.kill()
    found = {}
    for number, line in enumerate(TABLE):
        answer = folder / f"{number}-{WORLD - 1}.json"
        problem = answer.with_suffix(".error")
        assert not problem.exists(), f"{line} on real ranks: {problem.read_text()[-2000:]}"
        found[line] = (json.loads(answer.read_text()), rehearsed[number])
    return found


@pytest.mark.parametrize("line", TABLE)
def test_a_foreign_program_is_rehearsed_right(both, line):
    measured, rehearsed = both[line]
    assert isinstance(rehearsed, Rehearsal), rehearsed
    assert not rehearsed.alarms
    peak = min(measured["memory"]["step_peaks"][1:])
    assert rehearsed.memory.step_peaks[-1] == pytest.approx(peak, rel=1e-3)
    assert sorted(map(str, measured["traffic"])) == sorted(str(vars(row)) for row in rehearsed.traffic)
    assert rehearsed.flops == measured["flops"]


def test_on_a_gpu_that_is_not_there_the_same_bytes(both):
    """The program names `cuda` and no machine here has one; in fp32 its tensors are those of the CPU."""
    torch_says = subprocess.run(
        [sys.executable, "-c", "import torch, sys; sys.exit(torch.cuda.is_available())"], check=False
    )
    if torch_says.returncode:
        pytest.skip("there is a GPU")
    measured, _ = both["char_gpt.py --device=cpu"]
    rehearsed = rehearse(PROGRAMS / "char_gpt.py", WORLD, WORLD - 1)
    peak = min(measured["memory"]["step_peaks"][1:])
    assert rehearsed.memory.step_peaks[-1] == pytest.approx(peak, rel=1e-3)
    assert rehearsed.flops == measured["flops"]
    assert any("no CUDA device" in note for note in rehearsed.notes)
    assert any("host's memory" in note for note in rehearsed.notes)
