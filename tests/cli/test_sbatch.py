"""``workshop sbatch`` and ``workshop jobs`` where no Slurm is asked: what is written, and what is refused."""

import pytest

from workshop.cli import main
from workshop.cli.sbatch import settings_of

RUN = """\
model = "gpt-1m"
cluster = "this-machine"
micro_batch = 1
seq_len = 32
[layout]
replicate = 4
precision = "fp32"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a site of Slurm, a script, a cell and a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text(f'scheduler = "slurm"\n[paths]\njobs = "{tmp_path}/jobs"\n')
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.toml"))
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "cell.txt").write_text("%%torchrun -n 3 --timeout 9\nprint(1)\n")
    (tmp_path / "wrong.txt").write_text("%%torchrun -n two\nprint(1)\n")
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def script(capsys, *arguments):
    assert main(["sbatch", *arguments, "--dry-run"]) == 0
    return capsys.readouterr().out


def test_a_script_and_its_flags(here, capsys):
    text = script(capsys, "train.py", "-N", "2", "-n", "4", "--time", "01:00:00", "-J", "mine", "--requeue")
    for line in ("--job-name=mine", "--nodes=2", "--time=01:00:00", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert "--nproc-per-node=4 \\\n" in text
    assert not (here / "jobs").exists(), "nothing is written"


def test_a_cell_brings_its_number_of_ranks(here, capsys):
    assert "--nproc-per-node=3 \\\n" in script(capsys, "cell.txt")
    assert "--nproc-per-node=2 \\\n" in script(capsys, "cell.txt", "-n", "2")


def test_a_run_brings_its_layout(here, capsys):
    assert "--nproc-per-node=2 \\\n" in script(capsys, "run.toml", "-N", "2", "--set", "num_steps=3")
    assert "--nproc-per-node=4 \\\n" in script(capsys, "run.toml")


def test_a_sweep_is_an_array(here, capsys):
    text = script(capsys, "train.py", "--sweep", "lr=1e-3,3e-3,1e-2")
    assert "#SBATCH --array=0-2\n" in text
    assert "%x-%A_%a.out" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run.toml", "-N", "3"], "4 ranks of the layout do not divide over 3 nodes"),
        (["run.toml", "-n", "3"], "-N 1 -n 3 makes 3 ranks and the layout has 4"),
        (["run.toml", "--set", "num_steps"], "--set num_steps: write it as --set num_steps=100"),
        (
            ["run.toml", "--set", "num_step=100"],
            "unknown key 'num_step' in the settings of a training; did you",
        ),
        (["train.py", "--replicas", "0"], "--replicas 0: one or more"),
        (["wrong.txt", "--dry-run"], "'two' where the number of ranks stands"),
        (["train.py", "--set", "num_steps=3"], "--set is for a RUN.toml"),
        (["train.py", "--sweep", "lr"], "--sweep lr: write a variable and its values"),
        (["train.py", "--site", "nowhere.toml"], "there is no site file nowhere.toml"),
        (["train.py", "--site", "laptop"], "has no scheduler"),
        (["gone.py"], "gone.py"),
    ],
)
def test_what_cannot_be_handed_in_is_told(here, capsys, arguments, said):
    assert main(["sbatch", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_jobs(here, capsys):
    assert main(["jobs"]) == 0
    assert "no jobs" in capsys.readouterr().out
    assert main(["jobs", "7"]) == 2
    assert "no job 7 in" in capsys.readouterr().err
    assert main(["jobs", "--cancel"]) == 2
    assert "which job?" in capsys.readouterr().err


def test_settings():
    assert settings_of(["num_steps=3", "learning_rate=1e-3", "engine=ddp"]) == {
        "num_steps": 3,
        "learning_rate": 1e-3,
        "engine": "ddp",
    }
