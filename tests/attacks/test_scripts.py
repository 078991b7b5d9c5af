"""Values that would say more to a scheduler, a shell or a terminal than they should; secrets in sight of others."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attacks.table import ADA, MALLORY, as_user, attack, begin_as, end
from tests.site.test_directives import read_back
from workshop.site.apptainer_command import container_command, hidden_environment
from workshop.site.job import Job
from workshop.site.slurm_script import slurm_script
from workshop.site.spec import SiteSpec, site_from_table

SITE = SiteSpec(scheduler="slurm")
JOB = Job("j", "p.py")


def refusal(act) -> str:
    with pytest.raises(ValueError) as caught:
        act()
    return f"refused: {caught.value}"[:160]


@attack("a folder called `My Course --wrap=x #1`, from which a job is handed in", "whoever names a folder")
def test_blank_in_a_folder(shared):
    flags = read_back(slurm_script(SITE, replace(JOB, folder="/home/ada/My Course --wrap=x #1")))
    assert ("--chdir", "/home/ada/My Course --wrap=x #1") in flags
    assert not any(flag.startswith("--wrap") for flag, *_ in flags)
    return "one value: the job starts in that folder"


@attack("a folder whose name has a line break and a directive after it", "whoever names a folder")
def test_newline_in_a_folder(shared):
    folder = shared.drop / "a\n#SBATCH --wrap=x"
    folder.mkdir()
    return refusal(lambda: replace(JOB, folder=str(folder)))


@attack(
    "a line break and `#$ -l ...` in a variable's value (Grid Engine reads directives anywhere)",
    "a site file",
)
def test_newline_in_a_variable(shared):
    return refusal(lambda: site_from_table({"environment": {"A": "1\n#$ -l h_rt=99:0:0"}}))


@attack("a directive within the prologue", "a site file")
def test_directive_in_the_prologue(shared):
    return refusal(lambda: site_from_table({"job": {"prologue": ["#$ -q other"]}}))


@attack("a folder whose name is no UTF-8", "whoever names a folder")
def test_bytes_in_a_folder(shared):
    folder = Path(os.fsdecode(os.fsencode(shared.drop) + b"/\xff\xfe"))
    folder.mkdir()
    return refusal(lambda: replace(JOB, folder=str(folder)))


@attack("a program's argument of 100,000 letters", "whoever hands the job in")
def test_long_argument(shared):
    return refusal(lambda: replace(JOB, args=("x" * 100_000,)))[:60] + "..., one line may have 16384 bytes"


@attack("a folder's path of 1,500 bytes, which Slurm would refuse", "whoever names a folder")
def test_long_folder(shared):
    return refusal(lambda: slurm_script(SITE, replace(JOB, folder="/x" * 750)))


@attack("an escape sequence in an account's name, for the terminal that shows it", "a site file")
def test_escape(shared):
    return refusal(lambda: SiteSpec(scheduler="slurm", account="a\x1b]0;owned\x07"))


@attack(
    "a reader of all command lines of the node (ps), while ada's container has a token and a proxy's password"
)
def test_command_lines(shared):
    site = replace(SITE, runtime="apptainer", container="/x.sif", jobs="/jobs")
    secrets = {"HF_TOKEN": "geheim", "https_proxy": "http://ada:geheim@proxy:3128", "PLAIN": "seen"}
    words = container_command(site, ["python3"], folder="/home/ada", environment=secrets)
    stand_in = ["/bin/sh", "-c", "sleep 30 & wait", *words]

    def run():
        os.execve("/bin/sh", stand_in, {**os.environ, **hidden_environment(site, secrets)})

    def seen() -> str:
        return "".join(
            path.read_bytes().decode("utf-8", "replace") for path in Path("/proc").glob("[0-9]*/cmdline")
        )

    def reads_environment(pid: int) -> str:
        return Path(f"/proc/{pid}/environ").read_text()

    running = begin_as(ADA, run)
    try:
        for _ in range(500):
            if "PLAIN=seen" in (text := as_user(MALLORY, seen)):
                break
        assert "PLAIN=seen" in text
        assert "geheim" not in text
        assert as_user(MALLORY, reads_environment, running).startswith("PermissionError")
        assert "APPTAINERENV_HF_TOKEN=geheim" in Path(f"/proc/{running}/environ").read_text()
    finally:
        end(running)
    return "neither is seen: both go by the environment, which only ada can read"


def environment_of_job(script: str) -> str:
    """What a rank would see, in the shell of the batch script."""
    lines = script[script.index("container=") : script.index("\nsrun ")]
    told = {
        "PATH": os.environ["PATH"],
        "JUPYTER_TOKEN": "geheim",
        "HF_TOKEN": "geheim",
        "AWS_SECRET_ACCESS_KEY": "geheim",
    }
    done = subprocess.run(
        ["bash", "-c", f'{lines}\nbash -c "$on_node" "" env'],
        env=told,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@attack(
    "a job's program that sends JUPYTER_TOKEN, HF_TOKEN and AWS_* of the shell that handed it in", "a program"
)
def test_secrets_in_a_job(shared):
    assert "geheim" not in environment_of_job(slurm_script(SITE, JOB))
    assert "HF_TOKEN=geheim" in environment_of_job(slurm_script(replace(SITE, keep=("HF_TOKEN",)), JOB))
    return "they are not there, unless `keep` in the site's file names them"
