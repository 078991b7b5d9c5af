"""What a real sbatch makes of directives: the values that were meant, and the reading that the property tests use."""

import subprocess

import pytest

from tests.site.test_directives import NASTY, words
from workshop.site.job import Job
from workshop.site.slurm_script import sbatch_line, slurm_script
from workshop.site.spec import SiteSpec

pytestmark = pytest.mark.slurm


def held(slurm, tmp_path, text):
    """The job of a script that is handed in and held: its number, or what sbatch said against it."""
    script = tmp_path / "job.sh"
    script.write_text(text, "utf-8")
    done = subprocess.run(
        ["sbatch", "--parsable", "--hold", str(script)],
        capture_output=True, text=True, timeout=20, env=slurm.environment(),
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


def comment(slurm, number):
    return slurm.ask("squeue", "--noheader", f"--jobs={number}", "--format=%k|").rstrip("\n")[:-1]


def test_a_quoted_value_arrives(slurm, tmp_path):
    for value in [text for text in NASTY if text.strip()]:
        text = f"#!/bin/bash\n{sbatch_line('comment', value)}\n#SBATCH --partition=urgent\nsleep 1\n"
        number = held(slurm, tmp_path, text)
        assert number.isdigit(), (value, number)
        assert comment(slurm, number) == value
        assert slurm.ask("squeue", "-h", "-j", number, "-o", "%P").strip() == "urgent"


@pytest.mark.parametrize(
    "raw",
    [
        "'a b'",
        '"a#b"',
        "a\\#b",
        "a#b",
        "a\\\\b",
        "'a\\'b'",
        '"a""b"',
        "a$b",
        "'it'\\''s'",
        '"a\\"b #c"',
        "\\a\\b",
    ],
)
def test_the_reading_of_the_property_tests_is_sbatchs(slurm, tmp_path, raw):
    number = held(slurm, tmp_path, f"#!/bin/bash\n#SBATCH --comment={raw}\nsleep 1\n")
    assert words(f" --comment={raw}") == [f"--comment={comment(slurm, number)}"]


def test_a_blank_after_a_backslash_ends_a_value(slurm, tmp_path):
    assert "Invalid directive found in batch script: b" in held(
        slurm, tmp_path, "#!/bin/bash\n#SBATCH --comment=a\\ b\nsleep 1\n"
    )


def test_a_job_runs_in_a_folder_with_an_odd_name_and_writes_there(slurm, tmp_path):
    """``--chdir=/home/ada/My Course --wrap=...`` was two flags, and ``#1`` was cut away."""
    folder = tmp_path / "My Course #1 %j --wrap=x ü'\""
    folder.mkdir()
    job = Job("odd", "-c", ("print('ran')",), folder=str(folder), directory=str(folder), python="true")
    number = held(slurm, tmp_path, slurm_script(SiteSpec(scheduler="slurm"), job))
    shown = slurm.ask("scontrol", "show", "job", number)
    assert f"WorkDir={folder}\n" in shown
    slurm.ask("scontrol", "release", number)
    slurm._wait((folder / f"odd-{number}.out").exists, "no output")
    slurm._wait((folder / "task_0" / "start_0" / "exit").exists, "no end")
