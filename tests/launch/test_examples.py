"""PyTorch programs that know nothing of `workshop`, under our launcher and under torch's own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm_python
from workshop import launch
from workshop.site.current import rank_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))
ONE_AFTER_ANOTHER = Path(__file__).parent / "programs" / "one_after_another.py"
USE_THE_PACKAGE = {"train_gpt"}  # which is about this package's own loop


def unfolded(text: str) -> dict[int, list[str]]:
    """What each rank said, from text in which `[ranks 0,2-3] line` stands once."""
    said: dict[int, list[str]] = {}
    for line in text.splitlines():
        ranks, words = re.fullmatch(r"\[ranks? ([\d,-]+)\] ?(.*)", line).groups()
        for run in ranks.split(","):
            first, _, last = run.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                said.setdefault(rank, []).append(words)
    return said


@pytest.fixture(scope="module")
def under_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, list[str]]]:
    """What each rank of each program printed under `python -m torch.distributed.run`; one launch runs them all."""
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(ONE_AFTER_ANOTHER),
    ]
    state = tmp_path_factory.mktemp("checkpoint") / "state.pt"
    lines = [shlex.join([str(one), *arguments(one, state)]) for one in PROGRAMS]
    folder = tmp_path_factory.mktemp("printed")
    done = subprocess.run(
        [sys.executable, *launcher, str(folder), *lines],
        capture_output=True,
        text=True,
        timeout=200,
        env=rank_environment(os.environ),
    )
    assert done.returncode == 0, done.stderr
    return {
        program.stem: {rank: (folder / f"{number}-{rank}").read_text().splitlines() for rank in range(2)}
        for number, program in enumerate(PROGRAMS)
    }


def arguments(program: Path, state: Path) -> tuple[str, ...]:
    return ("--checkpoint", str(state)) if program.stem == "elastic_ddp" else ()


def test_unfolding():
    text = "[ranks 0,2-3] a\n[rank 1] b\n[rank 1]\n"
    assert unfolded(text) == {0: ["a"], 1: ["b", ""], 2: ["a"], 3: ["a"]}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_same_program_prints_the_same_under_both_launchers(program, tmp_path, under_torch):
    script = launch.Script(program, arguments(program, tmp_path / "state.pt"))
    ours = launch.torchrun(script, 2, limits=launch.Limits(timeout=100))
    assert len(ours.text.splitlines()) >= 5
    assert unfolded(ours.text) == under_torch[program.stem]


def test_the_same_text_every_time(tmp_path):
    texts = {launch.torchrun(launch.Script(EXAMPLES / "collectives.py"), 3).text for _ in range(3)}
    assert len(texts) == 1
    assert "[ranks 0-2] " not in texts.pop()  # every line of it names its rank


def test_elastic_ddp_goes_on_after_a_rank_was_killed(tmp_path):
    def run(name: str, *args: str, restarts: int = 0) -> launch.Result:
        script = launch.Script(EXAMPLES / "elastic_ddp.py", ("--checkpoint", str(tmp_path / name), *args))
        return launch.torchrun(script, 2, limits=launch.Limits(timeout=100, max_restarts=restarts))

    calm = run("calm.pt").text.splitlines()
    with pytest.raises(launch.RankFailed, match="rank 1 died first"):
        run("no_restart.pt", "--die-at", "3")
    killed = run("killed.pt", "--die-at", "3", restarts=1)
    (note,) = killed.notes
    assert note.startswith("attempt 1 failed (rank 1 died first")
    told = killed.text.splitlines()
    assert told[:2] == [note, "[ranks 0-1] attempt 1: goes on at epoch 3"]
    assert told[2:] == calm[3:]  # epochs 3 and 4, to the last digit what they are without a death


def test_elastic_ddp_goes_on_under_plain_torchrun(tmp_path):
    """gloo's addresses of the dead attempt lie in torchrun's store: the second must not find them."""
    torchrun = [sys.executable, "-m", "tests.plain_torchrun", "--standalone", "--nproc-per-node", "2"]
    program = [str(EXAMPLES / "elastic_ddp.py"), "--checkpoint", str(tmp_path / "state.pt"), "--die-at", "3"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = warm_python.run([*torchrun, "--max-restarts", "1", *program], env=one_thread, timeout=100)
    assert done.returncode in (0, -6), done.stderr  # -6: gloo's destructor, after all was done
    assert done.stdout.count("attempt 1: goes on at epoch 3") == 2
    assert done.stdout.count("epoch 4 loss") == 2


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_stands_alone_and_is_short(program):
    text = program.read_text()
    assert ("workshop" in text) == (program.stem in USE_THE_PACKAGE)
    assert len(text.splitlines()) < 120
