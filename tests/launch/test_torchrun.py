"""Fresh ranks, for real: the contract of `%%torchrun` line by line."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import wait_until
from workshop.launch import (
    Cell,
    EngineError,
    Limits,
    Module,
    Nodes,
    RankFailed,
    RankInterrupted,
    Ranks,
    RankTimeout,
    Script,
    torchrun,
)
from workshop.launch.child.rank_script import wait_for_a_turn
from workshop.launch.request import CellSyntaxError
from workshop.launch.session import Session

ROOT = Path(__file__).parents[2]
SHORT = Limits(timeout=30)
INIT = "import os, time, torch, torch.distributed as dist\ndist.init_process_group()\nr = dist.get_rank()\n"


def test_ranks_talk_print_and_report_without_torch_here() -> None:
    program = INIT + (
        "from workshop import report\nx = torch.ones(2) * r\ndist.all_reduce(x)\n"
        "print('sum', x.tolist())\nprint('rank', r)\nreport(x=x, r=r)\ndist.destroy_process_group()\nprint('done')"
    )
    result = torchrun(program, 3, limits=SHORT)
    assert result.text == (
        "[ranks 0-2] sum [3.0, 3.0]\n[rank 0] rank 0\n[rank 1] rank 1\n[rank 2] rank 2\n[ranks 0-2] done\n"
    )
    assert [result[r].r for r in range(3)] == [0, 1, 2]
    assert result[2].x.tolist() == [3.0, 3.0]
    assert result.device == "3 ranks on CPU, gloo" or "GPU" in result.device
    with pytest.raises(KeyError, match="no rank 3; this launch had ranks 0 to 2"):
        result[3]
    done = (
        "import sys; from workshop import launch; launch.torchrun('pass', 1); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", done], capture_output=True, text=True, timeout=90, check=True)
    assert out.stdout == "False\n"


def test_the_same_program_gives_the_same_text_every_time() -> None:
    program = "import os, random, time\ntime.sleep(random.random() / 20)\nprint('a')\nprint(os.environ['RANK'])\nprint('b')"
    texts = {torchrun(program, 4, limits=SHORT).text for _ in range(4)}
    assert len(texts) == 1


def test_a_fresh_program_sees_a_fresh_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESH", "yes")
    monkeypatch.setenv("SLURM_PROCID", "9")
    monkeypatch.setenv("RANK", "9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    program = (
        "import atexit, os, sys\nimport numpy as np\nimport beside\n"
        "atexit.register(lambda: print('bye'))\n"
        "print(__name__, os.environ['FRESH'], 'SLURM_PROCID' in os.environ, sorted(k for k in globals() if k[0] != '_'))\n"
        "print(os.getcwd(), sys.executable, sys.argv[1:], beside.VALUE, os.environ['OMP_NUM_THREADS'])\n"
        "from workshop import report\nreport(draw=float(np.random.rand()), rank=os.environ['RANK'])\n"
    )
    result = torchrun(program, 2, limits=SHORT)
    assert result.text == (
        "[ranks 0-1] __main__ yes False ['atexit', 'beside', 'np', 'os', 'sys']\n"
        f"[ranks 0-1] {tmp_path} {sys.executable} [] 7 1\n[ranks 0-1] bye\n"
    )
    assert result[0].draw != result[1].draw
    assert [result[r].rank for r in range(2)] == ["0", "1"]


DRAWS = """import os, random
import numpy, torch
from pathlib import Path
mine = [torch.initial_seed(), torch.rand(1).item(), random.random(), float(numpy.random.rand())]
Path(os.environ["DRAWS"], os.environ["RANK"]).write_text(repr(mine))
"""


def _drawn_by_staying_ranks(program: Path) -> None:
    ranks = Ranks(2)
    ranks.run(program.read_text())
    ranks.stop()


@pytest.mark.parametrize(
    "run",
    [lambda program: torchrun(Script(program), 2), _drawn_by_staying_ranks],
    ids=["fresh", "staying"],
)
def test_each_rank_draws_its_own_random_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    monkeypatch.setenv("DRAWS", str(tmp_path))
    (tmp_path / "draw.py").write_text(DRAWS)
    drawn = []
    for _ in range(2):
        run(tmp_path / "draw.py")
        drawn += [ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(2)]
    for one in zip(*drawn, strict=True):
        assert len(set(one)) == 4  # two launches of two ranks


POLICIES = """
import torch.distributed as dist
before = set(os.listdir("/proc/self/task"))
dist.new_group()
started = set(os.listdir("/proc/self/task")) - before
policies = {os.sched_getscheduler(int(thread)) for thread in started}
print(os.sched_getscheduler(0) == os.SCHED_BATCH, bool(started), policies == {os.SCHED_BATCH})
"""


def test_no_thread_of_a_rank_takes_a_core_from_one_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they wake up, for messages above all; and a sandbox that forbids the policy has slower ranks."""
    told = "[ranks 0-1] True True True\n"
    fresh, staying = torchrun(INIT + POLICIES, 2, limits=SHORT), Ranks(2, SHORT)
    try:
        if "GPU" not in fresh.device:  # those keep the usual policy
            assert fresh.text == staying.run("import os\n" + POLICIES).text == told
    finally:
        staying.stop()
    asked = []

    def forbidden(*arguments: Any) -> None:
        asked.append(arguments[:2])
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    wait_for_a_turn()
    assert asked == [(0, os.SCHED_BATCH)]


def test_what_is_said_of_that_policy_was_measured() -> None:
    """In its docstring: an all-reduce of 8 MB takes 0.6 of the time, one of 1 MB less than half."""
    record = json.loads((ROOT / "data/measurements/batch_ranks.json").read_text("utf-8"))
    alone = {row["megabytes"]: row for row in record["results"] if row["what"] == "an all-reduce"}
    takes = {size: row["batch_seconds"] / row["usual_seconds"] for size, row in alone.items()}
    assert round(takes[8], 1) == 0.6
    assert takes[1] < 0.5


def test_a_module_runs_as_under_python_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "course"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("print('package')\n")
    (package / "words.py").write_text("def fail():\n    raise KeyError('from words')\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "train.py").write_text(
        "import sys\nfrom ..words import fail\nprint(__name__, __package__, __spec__.name, sys.argv)\nfail()\n"
    )
    with pytest.raises(RankFailed) as caught:
        torchrun(Module("course.inner.train", ("--lr", "1e-3")), 2, limits=SHORT)
    where = package / "inner" / "train.py"
    assert caught.value.result.text == (
        "[ranks 0-1] package\n"
        f"[ranks 0-1] __main__ course.inner course.inner.train ['{where}', '--lr', '1e-3']\n"
    )
    lines = str(caught.value).splitlines()
    assert "raised KeyError" in lines[0]
    assert "line 2 of words.py" in lines[0]
    assert "    train.py line 4" in lines
    assert (caught.value.failures[0].file, caught.value.failures[0].line) == ("words.py", 2)
    with pytest.raises(
        ValueError, match=r"there is no module course.gone .* course/gone.py nor course/gone/__main__"
    ):
        torchrun(Module("course.gone"), 2)


def test_a_failure_in_another_file_of_the_program_names_it(tmp_path: Path) -> None:
    (tmp_path / "comms").mkdir()
    (tmp_path / "comms" / "ring.py").write_text(
        "import torch, torch.distributed as dist\n\n\ndef turn():\n    dist.recv(torch.ones(1), 1 - dist.get_rank())\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\nfrom comms import ring\ndist.init_process_group()\nring.turn()\n"
    )
    with pytest.raises(RankTimeout, match=r"ranks 0-1 wait in recv at line 5 of comms/ring.py") as caught:
        torchrun(Script(str(tmp_path / "train.py"), "--quoted 'two words'"), 2, limits=Limits(timeout=8))
    assert "    comms/ring.py line 5, in turn" in str(caught.value).splitlines()


def test_known_causes_are_named(tmp_path: Path) -> None:
    spawns = (
        "import torch.multiprocessing as mp, time\ndef work(rank):\n    time.sleep(60)\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=1)\n"
    )
    (tmp_path / "spawns.py").write_text(spawns)
    with pytest.raises(RankTimeout, match=r"Let one of the two do it: `-n 1`"):
        torchrun(Script(tmp_path / "spawns.py"), 2, limits=Limits(timeout=8))
    cuts = INIT + (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "q = distribute_tensor(torch.randn(1, 2, 8, 16), init_device_mesh('cpu', (2,)), [Shard(1)])\n"
        "torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)\n"
    )
    with pytest.raises(RankFailed, match=r"sdpa_kernel\(torch.nn.attention.SDPBackend.MATH\)"):
        torchrun(cuts, 2, limits=SHORT)
    (tmp_path / "kernel.so").write_bytes(b"")
    with pytest.raises(
        RankFailed, match=r"kernel.so: file too short.*\n(.*\n)*.*Delete the file that the message"
    ):
        torchrun(f"import ctypes\nctypes.CDLL('{tmp_path}/kernel.so')", 1, limits=SHORT)


def test_a_ddp_model_may_outlive_its_group() -> None:
    program = INIT + (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from workshop.launch.child.held_groups import _held\n"
        "models = [DDP(torch.nn.Linear(2, 2)) for _ in range(2)]\n"
        "print([group is models[0].process_group for group in _held])\n"
        "dist.destroy_process_group()\n"
    )
    assert torchrun(program, 2, limits=SHORT).text == "[ranks 0-1] [True]\n"


def test_a_limit_that_nobody_set_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSHOP_TIMEOUT", "1.5")
    with pytest.raises(RankTimeout, match=r"(?s)time is up after 1.5 s.*`--timeout 3600` gives an hour"):
        torchrun("import time\ntime.sleep(60)", 1)
    with pytest.raises(RankTimeout) as caught:
        torchrun("import time\ntime.sleep(60)", 1, limits=Limits(timeout=1))
    assert "--timeout" not in str(caught.value)


def test_values_are_passed_and_a_script_takes_arguments(tmp_path: Path) -> None:
    offset = 5
    result = torchrun("print(f(2), lr)", 2, variables={"f": lambda x: x + offset, "lr": 0.1}, limits=SHORT)
    assert result.text == "[ranks 0-1] 7 0.1\n"
    path = tmp_path / "train me.py"
    path.write_text("import sys\nprint(sys.argv[1:], __file__)\n")
    result = torchrun(Script(path, ("--lr", "1e-3")), 2, limits=SHORT)
    assert result.text == f"[ranks 0-1] ['--lr', '1e-3'] {path}\n"


def test_the_first_failure_is_named_with_line_and_the_others_place() -> None:
    body = (
        INIT + "def step():\n    if r == 1:\n        raise ValueError('boom')\n    dist.barrier()\nstep()\n"
    )
    with pytest.raises(RankFailed) as caught:
        torchrun(Cell(body), 3, limits=SHORT)
    assert str(caught.value).splitlines() == [
        "rank 1 raised ValueError first, line 7",
        "rank 1: ValueError: boom",
        "    cell line 9",
        "        step()",
        "    cell line 7, in step",
        "        raise ValueError('boom')",
        "rank 0: in barrier, line 8; ended",
        "rank 2: in barrier, line 8; ended",
    ]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import sys; sys.exit(4)", "SystemExit"),
        ("os.killpg(0, 15)", "SIGTERM"),  # the agent ends the others by the same signal
        ("os.killpg(0, 2)", "KeyboardInterrupt"),
    ],
)
def test_deaths_name_rank_and_cause(act: str, words: str) -> None:
    with pytest.raises(RankFailed, match=rf"(?s)rank 1 .* first.*rank 1: .*{words}.*rank 0: .*ended"):
        torchrun(
            f"import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(0.3); {act}\ntime.sleep(600)",
            2,
            limits=SHORT,
        )


def test_ranks_that_wait_for_one_that_has_left_are_told_at_once() -> None:
    body = INIT + "x = torch.ones(1)\nif r != 1:\n    dist.all_reduce(x)\n"
    with pytest.raises(RankFailed, match="ranks 0,2 wait in all_reduce at line 7; rank 1 has left the cell"):
        torchrun(body, 3, limits=Limits(timeout=600))  # longer than this test may take


def test_a_hang_ends_with_stacks_and_a_plain_sentence() -> None:
    body = INIT + "x = torch.ones(1)\nif r != 1:\n    dist.all_reduce(x)\nelse:\n    dist.recv(x, 0)\n"
    with pytest.raises(
        RankTimeout, match="ranks 0,2 wait in all_reduce at line 7; rank 1 waits in recv at line 9"
    ):
        torchrun(body, 3, limits=Limits(timeout=8))


def test_a_rank_that_ignores_sigterm_is_ended_too() -> None:
    body = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    with pytest.raises(RankTimeout):
        torchrun(body, 2, limits=Limits(timeout=1))


def test_a_rank_that_ended_itself_by_sigterm_is_named_beside_one_that_lost_its_connection() -> None:
    # To this thread: of a process, one of gloo's that is just starting may take it (`dump_stacks_on_signal`).
    body = INIT + "import signal\nif r == 1:\n    signal.raise_signal(15); time.sleep(600)\ndist.barrier()\n"
    for limits in (SHORT, Limits(timeout=30, max_restarts=1)):
        with pytest.raises(RankFailed) as caught:
            torchrun(body, 2, limits=limits)
        first = str(caught.value).splitlines()[:2]
        assert first == ["rank 1 died first, line 7", "rank 1: it died by SIGTERM (ended from outside)"]
    assert caught.value.result.notes[0].startswith("attempt 1 failed (rank 1 died first, line 7)")
    log = (Session.get().directory / "supervisor.log").read_text()
    assert "of fn: run" not in log, "torch's own log of a failed rank, which imports torch._dynamo first"


def test_ranks_that_leave_by_exit_code_0_have_ended_well() -> None:
    assert torchrun("import os\nprint(1, flush=True)\nos._exit(0)", 2, limits=SHORT).text == "[ranks 0-1] 1\n"


def test_stop_button_ends_the_ranks() -> None:
    pressed: list[str] = []  # once: a second press leaves the ranks to the engine

    def press_stop(_, text: str) -> None:
        if "[ranks 0-1] at work" in text and not pressed:
            pressed.append(text)
            os.kill(os.getpid(), signal.SIGINT)

    body = "import time\nprint('at work', flush=True)\ntime.sleep(600)"
    with pytest.raises(RankInterrupted) as caught:
        torchrun(body, 2, limits=Limits(timeout=600), on_output=press_stop)
    assert str(caught.value).startswith("ranks 0-1 are at line 4.\n")
    assert str(caught.value).endswith("the 2 ranks were ended.")
    assert caught.value.result.text == "[ranks 0-1] at work\n"
    assert torchrun("print(1)", 2, limits=SHORT).text == "[ranks 0-1] 1\n"


def test_restart_after_a_kill_meets_a_fresh_store() -> None:
    body = INIT + (
        "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nx = torch.ones(1)\ndist.all_reduce(x)\n"
        "if attempt == 0 and r == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()\nprint('attempt', attempt, x.item())\n"
    )
    result = torchrun(body, 2, limits=Limits(timeout=30, max_restarts=1))
    assert "[ranks 0-1] attempt 1 2.0\n" in result.text
    assert "attempt 1 failed (rank 1 died first" in result.notes[0]


def test_a_flood_does_not_block_and_says_where_the_log_is() -> None:
    body = "import sys\nfor i in range(200_000):\n    print('line', i)\nsys.stderr.write('y' * 20_000_000)\n"
    result = torchrun(body, 2, limits=Limits(timeout=60))
    assert len(result.text) < 200_000
    assert "more lines; the whole log is" in result.text
    log = Path(result.text.split("the whole log is ")[1].split(" ...")[0])
    assert log.read_bytes().count(b"\n") == 200_000


def test_what_a_rank_left_running_is_ended() -> None:
    body = "import subprocess\nfrom workshop import report\nreport(pid=subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    result = torchrun(body, 2, limits=SHORT)
    wait_until(lambda: not any(Path(f"/proc/{result[rank].pid}").exists() for rank in range(2)))


def test_nothing_listens_beyond_loopback() -> None:
    body = INIT + (
        "sub = dist.new_group()\nimport subprocess\ndist.barrier()\n"
        "tcp = [l.split() for f in ('tcp', 'tcp6') for l in open(f'/proc/self/net/{f}').read().splitlines()[1:]]\n"
        "mine = {os.readlink(f'/proc/{p}/fd/{d}')[8:-1] for p in (os.getpid(), os.getppid()) for d in os.listdir(f'/proc/{p}/fd')\n"
        "        if os.path.exists(f'/proc/{p}/fd/{d}')}\n"
        "print(sorted({l[1].split(':')[0] for l in tcp if l[3] == '0A' and l[9] in mine}))\ndist.barrier()\n"
    )
    assert torchrun(body, 2, limits=SHORT).text == "[ranks 0-1] ['0100007F']\n"


def test_keyboard_is_refused_at_once() -> None:
    with pytest.raises(RankFailed, match=r"input\(\) cannot work on a rank"):
        torchrun("input('name? ')", 2, limits=SHORT)
    with pytest.raises(RankFailed, match=r"breakpoint\(\) cannot work on a rank"):
        torchrun("breakpoint()", 2, limits=SHORT)


def test_memory_cap_raises_as_a_gpu_would() -> None:
    body = "import torch\nkept = [torch.zeros(2**20) for _ in range(3)]\nprint('3 fit')\nkept.append(torch.zeros(2**22))\n"
    with pytest.raises(RankFailed) as caught:
        torchrun(body, 2, limits=Limits(timeout=30, device_memory="16MiB"))
    assert caught.value.failures[0].error_type == "OutOfMemoryError"
    assert "Tried to allocate 16.0 MiB" in str(caught.value)
    assert "total capacity of 16.0 MiB of which 4.0 MiB is free; 12.0 MiB is held" in str(caught.value)
    # On a busy machine the other one may not have come so far when the first fails.
    assert caught.value.result.text in {f"[{who}] 3 fit\n" for who in ("rank 0", "rank 1", "ranks 0-1")}


def test_progress_bars_do_not_become_text() -> None:
    body = "from tqdm import tqdm\nfor _ in tqdm(range(3)):\n    pass\nprint('end')"
    assert torchrun(body, 2, limits=SHORT).text == "[ranks 0-1] end\n"


def test_two_nodes_meet_through_c10d() -> None:
    port = free_port()
    body = INIT + "x = torch.ones(1)\ndist.all_reduce(x)\nprint(dist.get_world_size(), x.item())"
    other = (
        "from workshop.launch import *\n"
        f"print(torchrun({body!r}, 2, nodes=Nodes(2, '127.0.0.1:{port}'), limits=Limits(timeout=60)).text)"
    )
    second = subprocess.Popen([sys.executable, "-c", other], stdout=subprocess.PIPE, text=True)
    result = torchrun(body, 2, nodes=Nodes(2, f"127.0.0.1:{port}"), limits=Limits(timeout=60))
    out, _ = second.communicate(timeout=60)
    texts = {result.text.strip(), out.strip()}
    assert texts == {"[ranks 0-1] 4 4.0", "[ranks 2-3] 4 4.0"}


@pytest.mark.parametrize(
    ("n", "words"), [(0, "0 ranks"), (-1, "-1 ranks"), (2000, "1 to 1024"), (True, "True ranks")]
)
def test_bad_rank_counts(n: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        torchrun("pass", n)


def test_bad_programs_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    with pytest.raises(CellSyntaxError, match="cell line 2"):
        torchrun("print(1", 2)
    with pytest.raises(ValueError, match=r"there is no script .*tran\.py; in that folder: train\.py"):
        torchrun(Script(tmp_path / "tran.py"), 2)


def test_a_directory_that_cannot_be_written_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.get()
    session.wait_ready()
    monkeypatch.setattr(session, "directory", Path("/proc/nowhere"))
    monkeypatch.setattr(session, "usable", lambda: True)  # the folder goes between the look and the write
    with pytest.raises(EngineError, match=r"cannot write to /proc/nowhere .*set TMPDIR"):
        torchrun("pass", 2)
    monkeypatch.undo()
    assert torchrun("print(1)", 2, limits=SHORT).text == "[ranks 0-1] 1\n"
