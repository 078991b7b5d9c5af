"""Batch scripts, to the letter. `UPDATE_GOLDEN=1 pytest tests/configs/test_batch_scripts.py` writes them anew."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.site.job import Job, cpus_wanted, gpus_wanted
from workshop.site.sge_script import sge_script
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import SiteSpec, read_site

GOLDEN = Path(__file__).parent / "golden_batch"
CENTRE = replace(
    read_site(Path(__file__).parents[2] / "examples" / "sites" / "slurm-apptainer.toml"),
    jobs="/scratch/ada/jobs",
    cache="/scratch/ada/cache",
)
PLAIN = SiteSpec(name="plain", scheduler="slurm", partition="lab", cpus=16)
GRID = SiteSpec(
    name="grid", scheduler="sge", modules=("cuda/12.8", "openmpi"), gpus=4, directives=("-l node_f={nnodes}",)
)
OWN = {"directory": "/scratch/ada/jobs/20260101-ddp", "folder": "/scratch/ada"}
SCRIPTS = {
    "plain.sbatch": lambda: slurm_script(PLAIN, Job("plain", "train.py", ("--lr", "1e-3"), nproc_per_node=2)),
    "centre.sbatch": lambda: slurm_script(
        CENTRE,
        Job("ddp run", "a.module", ("x y",), True, nnodes=2, nproc_per_node=4, environment={"HF_HUB_OFFLINE": "1"},
            python="python3", **OWN),
    ),
    "requeue.sbatch": lambda: slurm_script(
        PLAIN, Job("again", "train.py", nnodes=2, requeue=True, signal="USR1@60", max_restarts=3, **OWN)
    ),
    "array.sbatch": lambda: slurm_script(PLAIN, Job("sweep", "train.py", array="0-7%2", time="1-00:00:00", **OWN)),
    "grid.sge": lambda: sge_script(GRID, Job("grid", "train.py", nnodes=2, nproc_per_node=4, array="0-3")),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_golden_one(name):
    text = SCRIPTS[name]()
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8")


def test_there_is_no_golden_file_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir()} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_good_bash(name):
    checked = subprocess.run(
        ["bash", "-n"], input=SCRIPTS[name](), capture_output=True, text=True, timeout=20, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_no_launchers_variable_reaches_the_command():
    """The very lines of the script, run by bash with a poisoned environment."""
    text = SCRIPTS["plain.sbatch"]()
    lines = text[text.index("container=") : text.index("\nsrun ")]
    poisoned = {
        "PATH": os.environ["PATH"], "RANK": "7", "MASTER_ADDR": "nowhere", "SLURM_PROCID": "3", "SLURM_JOB_ID": "12",
        "SLURM_RESTART_COUNT": "1", "SLURM_STEP_NUM_TASKS": "4", "PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "2",
        "TORCHELASTIC_RUN_ID": "x", "MINE": "kept",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", f'{lines}\nexec bash -c "$on_node" "$container" env "with space=a b"'],
        env=poisoned, capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    wanted = {"MINE": "kept", "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1", "with space": "a b"}
    assert {name: seen[name] for name in wanted} == wanted
    gone = set(poisoned) - set(wanted) - {"PATH"}
    assert not gone & set(seen)


def test_gpus_and_cores():
    job = Job("j", "p", nproc_per_node=2)
    assert (gpus_wanted(CENTRE, job), cpus_wanted(CENTRE, job)) == (
        2,
        32,
    )  # half of 64 cores with half the GPUs
    assert (gpus_wanted(PLAIN, job), cpus_wanted(PLAIN, job)) == (0, 2)
    on_cpu = replace(job, gpus_per_node=0)
    assert (gpus_wanted(CENTRE, on_cpu), cpus_wanted(CENTRE, on_cpu)) == (0, 2)
    with pytest.raises(
        ValueError, match=r"8 GPUs a node are wanted and a node of .* has 4: -n 4 and more nodes"
    ):
        slurm_script(CENTRE, replace(job, nproc_per_node=8))


def test_restarts_get_a_store_of_their_own():
    assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in SCRIPTS["requeue.sbatch"]()
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in SCRIPTS["plain.sbatch"]()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nnodes": 0}, "1 ranks on 0 nodes: both must be 1 or more"),
        ({"time": "soon"}, "time 'soon': write it as HH:MM:SS"),
        ({"array": "a-b"}, "array 'a-b': write indices as 0-3"),
        ({"signal": "60"}, "signal '60': write a signal's name and seconds, as USR1@60"),
        ({"max_restarts": -1}, "max_restarts -1"),
        ({"gpus_per_node": -1}, "gpus_per_node -1"),
        ({"environment": {"a b": "1"}}, "'a b' is no name of a variable"),
        ({"folder": "/a\n#SBATCH --evil"}, "more than one line"),
    ],
)
def test_what_no_job_can_have(wrong, said):
    with pytest.raises(ValueError) as caught:
        Job("j", "p", **wrong)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("site", "job", "said"),
    [
        (replace(GRID, directives=()), Job("j", "p", nnodes=2), "say how it gives them in [job] directives"),
        (GRID, Job("j", "p", signal="USR1@9"), "Grid Engine warns jobs as the queue says"),
        (GRID, Job("j", "p", array="2,5"), "for Grid Engine write it as 0-7"),
    ],
)
def test_what_grid_engine_cannot(site, job, said):
    with pytest.raises(ValueError) as caught:
        sge_script(site, job)
    assert said in str(caught.value)
