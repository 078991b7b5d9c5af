"""The batch script of JupyterLab in a job: kept files for three sites, and what is refused."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.site.lab_script import Lab, lab_script, log_path
from workshop.site.spec import SiteSpec

GOLDEN = Path(__file__).parent / "golden_lab"
LAB = Lab("/scratch/ada/lab", "ada@login.example.org")
PLAIN = SiteSpec(scheduler="slurm", jobs="/people/ada/jobs")
CENTRE = SiteSpec(
    scheduler="slurm", account="ab123", partition="gpu", reservation="course", time="02:00:00",
    directives=("--exclusive",), gpus=4, cpus=64, interface="ib0", modules=("apptainer",), runtime="apptainer",
    container="/shared/workshop.sif", binds=("/scratch",), jobs="/scratch/ada/jobs", cache="/scratch/ada/cache",
)  # fmt: skip
GRID = SiteSpec(
    scheduler="sge", account="grp", partition="gpu.q", directives=("-l gpu_1=1",), jobs="/people/ada/jobs"
)
CASES = {
    "slurm": (PLAIN, replace(LAB, python="/shared/venv/bin/python", time="01:00:00"), {}),
    "slurm-apptainer": (
        CENTRE,
        replace(LAB, network=True),
        {"WORKSHOP_CACHE": "/scratch/ada/cache", "HF_HUB_OFFLINE": "1"},
    ),
    "sge": (GRID, replace(LAB, folder="/people/ada/my lab"), {"https_proxy": "http://proxy:3128"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_is_the_kept_one(name):
    script = lab_script(*CASES[name])
    assert script == (GOLDEN / f"lab-{name}.sh").read_text()
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


def test_a_part_of_a_node():
    part = replace(LAB, gpus=1, memory="32G")
    text = lab_script(CENTRE, part, {})
    asked = ["#SBATCH --gpus-per-node=1", "#SBATCH --cpus-per-task=16", "#SBATCH --mem=32G"]
    assert [line for line in asked if line not in text.splitlines()] == []
    with pytest.raises(ValueError, match="9 GPUs are wanted and a node of .* has 4"):
        lab_script(CENTRE, replace(LAB, gpus=9), {})
    with pytest.raises(ValueError, match="memory 'much': write it as 32G"):
        replace(LAB, memory="much")
    site = replace(
        GRID, gpus=4, cpus=64, directives=("-l node_f={nnodes}",), lab_directives=("-l gpu={gpus}",)
    )
    text = lab_script(site, replace(LAB, gpus=2), {})
    assert "#$ -l gpu=2" in text
    assert "node_f" not in text
    assert "#$ -l node_f=1" in lab_script(replace(site, lab_directives=()), LAB, {})
    with pytest.raises(ValueError, match="no directive of .* says {memory}"):
        lab_script(site, part, {})


def test_the_log_of_grid_engine_is_opened_by_the_script_for_its_user_alone(tmp_path):
    """Its very lines: the scheduler's own log would be there, for all to read, before any umask."""
    text = lab_script(replace(GRID, jobs=str(tmp_path)), LAB, {})
    assert "#$ -o /dev/null" in text
    lines = text[text.index("umask 077") : text.index("set -euo")]
    subprocess.run(["bash", "-c", f"{lines}\necho token"], env={"JOB_ID": "7"}, timeout=20, check=True)
    log = tmp_path / "workshop-lab-7.log"
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("token\n", 0o600)


def test_the_log():
    assert log_path(PLAIN, "17") == "/people/ada/jobs/workshop-lab-17.log"


def test_a_site_without_a_scheduler():
    with pytest.raises(ValueError, match="laptop has no scheduler: `workshop lab` starts JupyterLab here"):
        lab_script(SiteSpec(), LAB, {})


def test_there_is_no_kept_file_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir()} == {f"lab-{name}.sh" for name in CASES}


def test_a_site_that_exports_nothing_begins_with_a_login_shell():
    script = lab_script(replace(PLAIN, export="none"), LAB, {}).splitlines()
    assert script[0] == "#!/bin/bash -l"
    assert "#SBATCH --export=NONE" in script
    assert not [line for line in lab_script(PLAIN, LAB, {}).splitlines() if "export=" in line]
