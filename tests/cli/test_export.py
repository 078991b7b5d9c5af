import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.cli import main
from workshop.cli.export import ranks_in, split_cell

GOLDEN = Path(__file__).parent / "golden" / "ddp.sbatch"
PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("sum", total.item())
dist.destroy_process_group()
"""


@pytest.fixture
def cell(tmp_path):
    path = tmp_path / "ddp.txt"
    path.write_text(f"%%torchrun -n 2 --timeout 60\n{PROGRAM}")
    return path


def test_a_cell_becomes_a_plain_program_that_torchrun_runs(cell, capsys):
    assert main(["export", str(cell)]) == 0
    script = cell.with_suffix(".py")
    assert script.read_text() == PROGRAM
    command = shlex.split(capsys.readouterr().out.splitlines()[1])
    assert command[-2:] == ["--nproc-per-node=2", "ddp.py"]
    command[0] = sys.executable
    done = subprocess.run(command, cwd=cell.parent, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "sum 3\n"), done.stderr


def test_the_batch_file_is_the_golden_one(cell):
    arguments = ["-n", "4", "--nnodes", "2", "--gpus", "--time", "00:30:00", "--slurm"]
    assert main(["export", str(cell), *arguments]) == 0
    assert cell.with_suffix(".sbatch").read_text() == GOLDEN.read_text()


def test_the_batch_file_is_good_bash(cell):
    assert main(["export", str(cell), "--slurm", "--output", str(cell.parent / "a job's")]) == 0
    batch = cell.parent / "a job's" / "ddp.sbatch"
    assert "--gpus" not in batch.read_text()
    checked = subprocess.run(["bash", "-n", batch], capture_output=True, text=True, timeout=20)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_name_with_spaces_is_quoted(tmp_path):
    source = tmp_path / "my run.py"
    source.write_text(PROGRAM)
    assert main(["export", str(source), "-n", "2", "--slurm"]) == 0
    text = (tmp_path / "my run.sbatch").read_text()
    assert text.endswith("    'my run.py'\n")
    assert "#SBATCH --job-name=my-run\n" in text


def test_the_script_may_be_the_source(tmp_path):
    source = tmp_path / "train.py"
    source.write_text(PROGRAM)
    assert main(["export", str(source), "-n", "2", "--slurm"]) == 0
    assert source.read_text() == PROGRAM


def test_another_file_is_not_overwritten(cell, capsys):
    cell.with_suffix(".py").write_text("precious = 1\n")
    assert main(["export", str(cell)]) == 2
    assert "is there and differs" in capsys.readouterr().err
    assert cell.with_suffix(".py").read_text() == "precious = 1\n"


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("x = 1\n", [], "does not say how many ranks: give --nproc-per-node N"),
        ("x = 1\n", ["-n", "0"], "0 ranks on 1 nodes: both must be 1 or more"),
        ("x = 1\n", ["-n", "2", "--nnodes", "0"], "2 ranks on 0 nodes"),
        ("%%torchrun -n 2\nx = (\n", [], "line 1 is not Python"),
        ("%%ranks -n 2\nx = 1\n", ["-n", "2"], "line 1 is not Python"),
        ('{"nbformat": 4}', ["-n", "2"], "this is a notebook: save one cell"),
        ("x = 1\n", ["-n", "2", "--slurm", "--time", "soon"], "time 'soon': write it as HH:MM:SS"),
    ],
)
def test_what_cannot_be_exported_is_told(tmp_path, capsys, text, arguments, said):
    source = tmp_path / "cell.txt"
    source.write_text(text)
    assert main(["export", str(source), *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "sbatch"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trian.py", r"there is no file trian\.py in .*; did you mean 'train\.py'\?"),
        ("nofile.py", r"there is no file nofile\.py in [^;]*$"),  # Makefile stands there, and is not meant
        ("gone/cell.txt", r"there is no file cell\.txt: no folder .*gone"),
        ("", r" is a folder: name the file with the cell or the script"),
        ("bytes.py", r"bytes\.py is no text in UTF-8 \(byte 1\)"),
        (
            "loop.py",
            r"there is no file loop\.py|cannot read .*loop\.py \(Too many levels of symbolic links\)",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_words(tmp_path, capsys, command, name, said):
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "bytes.py").write_bytes(b"x\xff\xfe")
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert main([command, str(tmp_path / name), "-n", "2"]) == 2
    error = capsys.readouterr().err
    assert re.search(said, error)
    assert "Errno" not in error


def test_a_folder_that_cannot_be_written_is_told_in_words(cell, capsys):
    (cell.parent / "taken").write_text("a file")
    assert main(["export", str(cell), "--output", str(cell.parent / "taken" / "deep")]) == 2
    error = capsys.readouterr().err
    assert re.search(
        r"cannot write into .*deep \(Not a directory\): choose another folder with --output", error
    )


def test_split_cell():
    assert split_cell("\n%%torchrun -n 2\n\nx = 1\n") == ("x = 1\n", "-n 2")
    assert split_cell("x = 1\n") == ("x = 1\n", "")


@pytest.mark.parametrize(
    ("flags", "num_ranks"),
    [
        ("-n 4", 4),
        ("--timeout 9 -n 2", 2),
        ("--nproc-per-node=8", 8),
        ("--nproc_per_node 3", 3),
        ("--nnodes 2", None),
        ("", None),
    ],
)
def test_ranks_in(flags, num_ranks):
    assert ranks_in(flags) == num_ranks


def test_at_a_site_with_grid_engine_the_batch_file_is_qsubs(cell, tmp_path, capsys):
    site = tmp_path / "grid.toml"
    site.write_text('scheduler = "sge"\n[job]\naccount = "tga-course"\naccount_flag = "-g"\n')
    assert main(["export", str(cell), "-n", "2", "--batch", "--site", str(site)]) == 0
    assert "qsub -g tga-course ddp.qsub" in capsys.readouterr().out
    assert "#$ -S /bin/bash" in cell.with_suffix(".qsub").read_text()
