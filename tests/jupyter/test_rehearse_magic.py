"""`%%rehearse` in a shell, as a notebook would call it."""

import pytest

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402

from workshop.jupyter.rehearse_magic import RehearseMagics  # noqa: E402
from workshop.rehearse import Rehearsal  # noqa: E402

CELL = """
import torch, torch.distributed as dist
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 8)).sum().backward()
print("rank", dist.get_rank(), "of", dist.get_world_size())
optimizer.step()
"""


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.register_magics(RehearseMagics)
    return shell


def test_the_cell_is_run_as_that_rank(shell, capsys):
    shell.run_cell_magic("rehearse", "-n 8192 --rank 17 --into played", CELL)
    shown = capsys.readouterr().out
    assert "rank 17 of 8192" in shown
    assert "all_reduce" in shown
    played = shell.user_ns["played"]
    assert isinstance(played, Rehearsal)
    assert played.traffic[0].payload_bytes == (64 + 8) * 4


def test_a_one_line_cell_is_a_program_not_a_path(shell, capsys):
    shell.run_cell_magic("rehearse", "-n 2", "print(6 * 7)")
    assert "42" in capsys.readouterr().out


def test_a_bad_name_is_refused_before_anything_runs(shell):
    with pytest.raises(ValueError, match="--into 2x: not a name"):
        shell.run_cell_magic("rehearse", "-n 2 --into 2x", CELL)


def test_a_rank_outside_the_world(shell):
    with pytest.raises(ValueError, match="ranks are 0 to 3"):
        shell.run_cell_magic("rehearse", "-n 4 --rank 4", CELL)
