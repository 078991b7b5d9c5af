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


def test_the_log():
    assert log_path(PLAIN, "17") == "/people/ada/jobs/workshop-lab-17.log"


def test_a_site_without_a_scheduler():
    with pytest.raises(ValueError, match="laptop has no scheduler: `workshop lab` starts JupyterLab here"):
        lab_script(SiteSpec(), LAB, {})


def test_there_is_no_kept_file_that_nobody_writes():
    assert {path.name for path in GOLDEN.iterdir()} == {f"lab-{name}.sh" for name in CASES}
