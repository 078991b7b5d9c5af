"""`workshop rehearse`: a script's report, its JSON, its exit codes."""

from __future__ import annotations

import json

import pytest

from workshop.cli import main

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
width = int(sys.argv[1])
print("width", width, sys.argv[2:])
model = DistributedDataParallel(torch.nn.Linear(width, width, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_the_report_follows_what_the_script_printed(script, capsys):
    assert main(["rehearse", "-n", "64", "--rank", "7", script, "16", "--lr", "0.1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("width 16 ['--lr', '0.1']\nrehearsed rank 7 of 64: 2 steps")
    assert "all_reduce" in said


def test_json_has_an_object_for_each_rank(script, capsys):
    assert main(["rehearse", "--nproc-per-node", "4", "--rank", "0,3", "--json", script, "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in found] == [0, 3]
    assert found[1]["traffic"][0]["payload_bytes"] == 8 * 8 * 4


def test_what_cannot_be_rehearsed_is_exit_code_1_with_its_line(script, capsys):
    assert main(["rehearse", "-n", "2", script, "sixteen"]) == 1
    said = capsys.readouterr()
    assert "line 5: width = int(sys.argv[1])" in said.err
    assert "ValueError" in said.err


def test_an_alarm_is_exit_code_1(tmp_path, capsys):
    path = tmp_path / "leaves.py"
    path.write_text("import sys\nsys.exit()\n")
    assert main(["rehearse", "-n", "2", str(path)]) == 1
    assert (
        "ALARM: the program left before its first optimizer.step(), at line 2: sys.exit()"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["-n", "2", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["-n", "2", "--rank", "x", "nowhere.py"], "--rank x: a rank"),
        (["-n", "2", "--rank", "2", "nowhere.py"], "rank 2 is not in a world of 2"),
    ],
)
def test_a_wrong_call_is_exit_code_2(line, message, capsys):
    assert main(["rehearse", *line]) == 2
    assert message in capsys.readouterr().err
