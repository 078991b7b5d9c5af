"""examples/ci: what the hosts' own schemas take, every day of the course, limits, artefacts, commands that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB, GITLAB = (ROOT / "examples/ci" / name for name in ("github-actions.yml", "gitlab-ci.yml"))
SCHEMAS = {GITHUB: "vendor.github-workflows", GITLAB: "vendor.gitlab-ci"}
DAYS = sorted(path.name for path in (ROOT / "notebooks").glob("day*"))
PLACES = {"${{ matrix.day }}": "day0_welcome", "$DAY": "day0_welcome"}


def fits_its_schema(file, schema):
    """Whether check-jsonschema, with the schemas that it carries, takes the file; and what it says."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def jobs(file):
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found["jobs"] if file is GITHUB else {name: one for name, one in found.items() if "script" in one}


def shell_lines(file):
    """Every line that a shell would run."""
    for job in jobs(file).values():
        yield from (step["run"] for step in job.get("steps", ()) if "run" in step)
        yield from (*job.get("script", ()), *job.get("after_script", ()))


@pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: file.stem)
def test_the_host_takes_the_file_and_would_refuse_a_mistake(file, tmp_path):
    fits, said = fits_its_schema(file, SCHEMAS[file])
    assert fits, said
    text = file.read_text(encoding="utf-8")
    wrong = tmp_path / file.name
    wrong.write_text(re.sub(r"timeout(-minutes)?: \d+.*", r"timeout\1: [soon]", text), encoding="utf-8")
    assert not fits_its_schema(wrong, SCHEMAS[file])[0]


def test_every_day_has_its_job():
    assert jobs(GITHUB)["lessons"]["strategy"]["matrix"]["day"] == DAYS
    assert jobs(GITLAB)["lessons"]["parallel"]["matrix"] == [{"DAY": DAYS}]


def test_every_job_has_a_limit_and_leaves_something():
    for job in jobs(GITHUB).values():
        assert job["timeout-minutes"] <= 45
        assert any(step.get("uses", "").startswith("actions/upload-artifact@") for step in job["steps"])
    for job in jobs(GITLAB).values():
        assert int(job["timeout"].removesuffix(" minutes")) <= 45
        assert job["artifacts"]["paths"]


@pytest.mark.parametrize("file", SCHEMAS, ids=lambda file: file.stem)
def test_its_lines_are_shell_and_its_targets_make_knows(file):
    lines = list(shell_lines(file))
    assert len(lines) >= 3
    for line in lines:
        for written, read in PLACES.items():
            line = line.replace(written, read)
        assert "${{" not in line
        subprocess.run(["bash", "-n", "-c", line], check=True, timeout=20)
        if line.startswith("make "):
            done = subprocess.run(
                ["bash", "-c", f"make --dry-run {line[5:]}"],
                cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            if "LESSONS" in line:
                assert "notebooks/day0_welcome/00_welcome.ipynb --nbval-lax" in done.stdout
                assert "--nbval-cell-timeout=300" in done.stdout
                assert "--junitxml=report.xml" in done.stdout
