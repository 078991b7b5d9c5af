"""The parallel cells in a real notebook kernel, driven by nbclient."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

Run = Callable[..., list[nbformat.NotebookNode]]


# What `%ranks?` shows: a question mark opens a pager, which is no output of the cell.
INSPECT = "print(get_ipython().object_inspect_text('%ranks'))"


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def shown(cell: nbformat.NotebookNode) -> list[str]:
    return [o.data["text/plain"] for o in cell.outputs if o.output_type in ("display_data", "execute_result")]


def error(cell: nbformat.NotebookNode) -> str:
    return "".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")


def test_fresh_ranks(kernel: Run, folder: Path) -> None:
    (folder / "train.py").write_text("import sys\nprint('args', sys.argv[1:])\n")
    cells = kernel(
        "lr = 0.5",
        "%%torchrun -n 2 --pass lr --into results --save saved.py\n"
        "import os\nfrom workshop import report\nprint('lr', lr)\nreport(rank=os.environ['RANK'])",
        "results[1].rank, results.text",
        "%torchrun -n 2 train.py --lr 1e-3 -n 7",
        "import sys; 'torch' in sys.modules",
    )
    assert shown(cells[1]) == ["2 ranks on CPU, gloo"]
    assert printed(cells[1]) == "[ranks 0-1] lr 0.5\n"
    assert shown(cells[2]) == ["('1', '[ranks 0-1] lr 0.5\\n')"]
    assert printed(cells[3]) == "[ranks 0-1] args ['--lr', '1e-3', '-n', '7']\n"
    assert shown(cells[4]) == ["False"]
    assert (folder / "saved.py").read_text().startswith("lr = 0.5  # %%torchrun -n 2 --pass lr")


def test_replicas(kernel: Run) -> None:
    body = "import os\nfrom workshop import report\nprint(lr)\nreport(replica=os.environ['REPLICA_GROUP_ID'])"
    cells = kernel(
        "lr = 0.5",
        f"%%torchrun --replicas 3 --pass lr --into r\n{body}",
        "[r[number][0].replica for number in range(3)]",
        "%%torchrun --replicas 2 -n 2 --into failed\nimport os\nif os.environ['REPLICA_GROUP_ID'] == '1':\n    1 / 0\n"
        "from workshop import report\nreport(x=1)",
        "failed[0][1].x",
        "%%torchrun --replicas 2 --nnodes 2\nprint(1)",
        "%%torchrun --replicas 0\nprint(1)",
        "%%torchrun --replicas 2 --nsys profile\nprint(1)",
    )
    assert shown(cells[1])[0].startswith("3 replicas of 1 rank on CPU, gloo")
    assert printed(cells[1]) == "[replicas 0-2] 0.5\n"
    assert shown(cells[2]) == ["['0', '1', '2']"]
    assert re.search(r"RankFailed: replica 1: ranks? .* raised ZeroDivisionError.*, line 4", error(cells[3]))
    assert "replica 0: went on, and finished" in error(cells[3])
    assert shown(cells[4]) == ["1"]
    assert "ValueError: --replicas run on one node" in error(cells[5])
    assert "ValueError: 0 replicas: one or more" in error(cells[6])
    assert "ValueError: --replicas does not go with --nsys" in error(cells[7])


def test_staying_ranks(kernel: Run) -> None:
    cells = kernel(
        "%ranks status",
        "%%ranks -n 2\nx = torch.ones(1) * rank\ndist.all_reduce(x)\nx",
        "%%ranks --on 1\nprint(rank, world_size, device)",
        "%%ranks\nif rank == 1:\n    raise ValueError('boom')\ndist.barrier()",
        "%%ranks --into r\nfrom workshop import report\nreport(x=x.item())\nprint('still here')",
        "r[0].x",
        "%%ranks\nfrom IPython.display import HTML\nif rank == 0:\n    display(HTML('<i>rich</i>'))",
        "%ranks restart",
        "%%ranks\nprint('x' in globals())",
        "%ranks stop",
        "%ranks start -n 3",
        "%%ranks\nprint(world_size)",
        "%ranks stop",
    )
    assert "no ranks; `%ranks start -n 4` starts four" in printed(cells[0])
    assert printed(cells[1]) == "[ranks 0-1] tensor([1.])\n"
    assert printed(cells[2]) == "[rank 1] 1 2 cpu\n"
    lines = error(cells[3]).splitlines()
    assert lines[0] == "RankFailed: rank 1 raised ValueError first, line 3"  # the magic line is line 1
    assert lines[-1].startswith("the process group was cut")
    assert printed(cells[4]) == "[ranks 0-1] still here\n"
    assert shown(cells[5]) == ["1.0"]
    assert printed(cells[6]) == "[rank 0]\n"
    assert cells[6].outputs[-1].data["text/html"] == "<i>rich</i>"
    assert printed(cells[7]) == "2 ranks on CPU, gloo: ready\n"
    assert printed(cells[8]) == "[ranks 0-1] False\n"
    assert printed(cells[11]) == "[ranks 0-2] 3\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("%%torchrun -n 2 --timeot 3\npass", "ValueError: %%torchrun: unrecognized arguments: --timeot 3. Did you mean --timeout?"),
        ("%%torchrun -n many\npass", "ValueError: %%torchrun: argument -n/--nproc-per-node: 'many': a number of ranks, or gpu"),
        ("%%torchrun -n 0\npass", "ValueError: 0 ranks"),
        ("%%torchrun -n 2 --pass lock\npass", "ValueError: --pass lock: a lock cannot be sent to the ranks"),
        ("%%torchrun -n 2 --pass nothing\npass", "ValueError: --pass nothing: the notebook has no variable"),
        ("%%torchrun -n 2\nprint(1", "CellSyntaxError: cell line 2: '(' was never closed"),
        ("%%torchrun -n 2 --device-memory lots\npass", "ValueError"),
        ("%%torchrun -n 2 --into 2x\npass", "ValueError: --into 2x: a variable's name"),
        ("%%torchrun -n 2 --nnodes 2\npass", "ValueError: --nnodes needs --rdzv-endpoint"),
        ("%torchrun -n 2 gone.py", "ValueError: there is no script gone.py"),
        ("%torchrun -n 2", "ValueError: %torchrun needs a script"),
        ("%%ranks --on x\npass", "ValueError: %%ranks: argument --on: --on x: write ranks as 0,2-3"),
        ("%%ranks -n 2\nif True", "CellSyntaxError: cell line 2: expected ':'"),
        ("%ranks explode", "ValueError: %ranks: argument action: invalid choice"),
        ("%%torchrum -n 2\npass", "UsageError: Cell magic `%%torchrum` not found"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_sentence(kernel: Run, source: str, words: str) -> None:
    kernel("import threading; lock = threading.Lock()")
    assert words in error(kernel(source)[0])
    assert "File" not in error(kernel(source)[0])


def test_the_group_is_usable_after_bad_input(kernel: Run) -> None:
    cells = kernel(
        "%%ranks -n 2\nprint(rank)", "%%ranks -n 3\npass", "%%ranks --on 5\npass", "%%ranks\nprint('fine')"
    )
    assert "there are 2 ranks already" in error(cells[1])
    assert "`%ranks restart -n 3` starts 3 anew" in error(cells[1])
    zero = kernel("%%ranks -n 0\npass", "%ranks", INSPECT, "%ranks stop")
    assert "ValueError: 0 ranks: a group has 1 to 1024" in error(zero[0])
    assert "rank 1: process" in printed(zero[1])  # nothing said is status
    assert "\n  %ranks [" in printed(zero[2])
    assert "ranks_line" not in printed(zero[2])
    assert "--on 5: these are ranks 0 to 1" in error(cells[2])
    assert printed(cells[3]) == "[ranks 0-1] fine\n"


def test_live_output_shrinks_to_the_first_line(kernel: Run) -> None:
    cell = kernel(
        "%%torchrun -n 2\nimport time\nfor i in range(4):\n    print('step', i)\n    time.sleep(0.2)"
    )[0]
    assert shown(cell) == ["2 ranks on CPU, gloo"]
    assert printed(cell) == "".join(f"[ranks 0-1] step {i}\n" for i in range(4))


@pytest.mark.parametrize(("warm_up", "started"), [("on", "True"), ("off", "False")])
def test_the_engine_starts_with_the_extension_unless_it_was_told_to_wait(
    run: Run, monkeypatch: pytest.MonkeyPatch, warm_up: str, started: str
) -> None:
    monkeypatch.setenv("WORKSHOP_WARM_UP", warm_up)
    (cell,) = run("from workshop.launch import Session\nSession._current is not None")
    assert shown(cell) == [started]
