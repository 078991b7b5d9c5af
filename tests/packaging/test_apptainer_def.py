"""apptainer.def: sections that Apptainer knows, a default for every argument, one list of dependencies."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "apptainer.def").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Source: Apptainer user guide, "Definition Files", the sections in the order of their description there.
SECTIONS = {
    "arguments",
    "setup",
    "files",
    "app",
    "post",
    "test",
    "environment",
    "startscript",
    "runscript",
    "labels",
    "help",
}
SAID = ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "PYTHONNOUSERSITE", "WORKSHOP_CACHE")
SCRIPTS = ("post", "test", "environment", "runscript")


def sections(text):
    """The header's fields and the text of each section."""
    header, *rest = re.split(r"^%(?=\w)", text, flags=re.MULTILINE)
    fields = dict(line.split(": ", 1) for line in header.splitlines() if line.strip())
    return fields, {part.split("\n", 1)[0].strip(): part.split("\n", 1)[1] for part in rest}


def arguments(parts):
    lines = [line.strip() for line in parts.get("arguments", "").splitlines()]
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def problems(text):
    fields, parts = sections(text)
    said = [f"unknown section %{name}" for name in set(parts) - SECTIONS]
    said += [f"no %{name}" for name in ("post", "test", "runscript") if name not in parts]
    defaults, used = arguments(parts), set(re.findall(r"\{\{ (\w+) \}\}", text))
    said += [f"{name} has no default" for name in used - set(defaults)]
    said += [f"{name} is not used" for name in set(defaults) - used]
    if fields != {"Bootstrap": "{{ BOOTSTRAP }}", "From": "{{ BASE }}"}:
        said.append(f"the header is {fields}")
    if not re.fullmatch(r"[\w./-]+@sha256:[0-9a-f]{64}", defaults.get("BASE", "")):
        said.append("the base image is not named by its digest alone")
    for line in parts.get("files", "").splitlines():
        if line.strip() and not (ROOT / line.split()[0]).exists():
            said.append(f"no file {line.split()[0]}")
    said += _script_problems(parts, defaults)
    return said


def _script_problems(parts, defaults):
    said = []
    for name in set(SCRIPTS) & set(parts):
        script = re.sub(r"\{\{ (\w+) \}\}", lambda found: defaults.get(found[1], ""), parts[name])
        checked = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=20)
        if checked.returncode:
            said.append(f"%{name} is no shell script: {checked.stderr.strip()}")
    if "workshop doctor" not in parts.get("test", ""):
        said.append("%test does not run the doctor")
    if "workshop lab" not in parts.get("runscript", ""):
        said.append("%runscript does not start the lab")
    names = {Requirement(text).name for text in PROJECT["dependencies"]} - {"torch"}
    words = set(re.findall(r"[\w-]+", parts.get("post", "")))
    said += [f"%post lists {name}: only pyproject.toml does" for name in names & words]
    if "/opt/workshop[{{ EXTRAS }}]" not in parts.get("post", ""):
        said.append("%post does not install from pyproject.toml")
    extras = set(defaults.get("EXTRAS", "").split(","))
    said += [f"no extra {name}" for name in extras - set(PROJECT["optional-dependencies"])]
    said += [f"EXTRAS lacks {name}" for name in {"gpu", "hpc"} - extras]
    said += [f"%environment does not set {name}" for name in SAID if name not in parts.get("environment", "")]
    said += [
        f"{name} is set for everyone"
        for name in ("ASSETS", "CACHE", "INDEX", "PACKAGES", "TORCH")
        if defaults.get(name)
    ]
    return said


def test_the_definition_is_good():
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("%post", "%pots", "unknown section %pots"),
        ("%test", "%setup", "no %test"),
        ("    TORCH=\n", "", "TORCH has no default"),
        ("    TORCH=\n", "    TORCH=\n    SPARE=1\n", "SPARE is not used"),
        ("nvidia/cuda@", "nvidia/cuda:13.0.3-base-ubuntu24.04@", "not named by its digest alone"),
        ("927a5c1", "927a5c", "not named by its digest alone"),
        ("    LICENSE /opt", "    LICENCE /opt", "no file LICENCE"),
        ("; fi\n", "; if\n", "%post is no shell script"),
        ("workshop doctor\n\n%runscript", "true\n\n%runscript", "%test does not run the doctor"),
        ("EXTRAS=gpu,hpc", "EXTRAS=gpu,hps", "no extra hps"),
        ("EXTRAS=gpu,hpc", "EXTRAS=hpc", "EXTRAS lacks gpu"),
        ("export PYTHONNOUSERSITE=1", "true", "%environment does not set PYTHONNOUSERSITE"),
        ("    PACKAGES=\n", "    PACKAGES=/opt/mine\n", "PACKAGES is set for everyone"),
        ("--editable", "numpy --editable", "%post lists numpy"),
        ("From: {{ BASE }}", "From: debian", "the header is"),
    ],
)
def test_a_mistake_is_found(old, new, said):
    assert old in GOOD
    assert said in " ".join(problems(GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("torch", "index", "asked"),
    [
        ("", "", ""),
        ("torch==2.12.*", "", "torch==2.12.*"),
        ("", "https://wheels.example/cu126", "--index-url https://wheels.example/cu126 torch"),
        (
            "torch==2.13.0",
            "https://wheels.example/cu126",
            "--index-url https://wheels.example/cu126 torch==2.13.0",
        ),
    ],
)
def test_a_centre_chooses_the_cuda_of_its_driver(torch, index, asked):
    """The very lines of %post, with a pip that says what it was asked for."""
    lines = GOOD[GOOD.index('torch="{{ TORCH }}') : GOOD.index('/opt/venv/bin/pip install "$@" --editable')]
    for written, read in (
        ("{{ TORCH }}", torch),
        ("{{ INDEX }}", index),
        ("/opt/venv/bin/pip install", "echo"),
    ):
        lines = lines.replace(written, read)
    done = subprocess.run(["sh", "-euc", lines, "sh"], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.strip() == asked


def test_what_installs_the_package_is_copied_first():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, _ = project["tool"]["setuptools"]["cmdclass"]["build_py"].rpartition(".")
    wanted = {f"{module.replace('.', '/')}.py", "pyproject.toml", project["project"]["readme"], "workshop"}
    copied = {line.split()[0] for line in sections(GOOD)[1]["files"].splitlines() if line.strip()}
    assert wanted - copied == set()


def test_lesson_61_shows_lines_of_this_file():
    (lesson,) = (ROOT / "notebooks" / "source").glob("day*/61_*.py")
    shown = lesson.read_text().partition("# Bootstrap: ")[2].partition("# ```")[0]
    lines = ["Bootstrap: " + shown.splitlines()[0], *(line.strip("# ") for line in shown.splitlines()[1:])]
    ours = {line.strip() for line in GOOD.splitlines()}
    assert len(lines) > 10
    for line in filter(None, lines):
        start = line.removesuffix("...")
        assert any(one.startswith(start) if start != line else one == line for one in ours), line
