"""constraints.txt: a lock that agrees with pyproject.toml, without torch, without places of one machine."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "constraints.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEFT_OUT = {"torch", "pip", "setuptools", "wheel", "large-model-workshop"}
LINE = re.compile(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+")


def problems(text):
    said, pins = [], {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not LINE.fullmatch(line):
            said.append(f"not a pin: {line}")
            continue
        name, version = line.split("==")
        pins[canonicalize_name(name)] = version
    said += [f"{name} has a pin" for name in LEFT_OUT & set(pins)]
    listed = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]
    for requirement in map(Requirement, listed):
        name = canonicalize_name(requirement.name)
        if name not in LEFT_OUT and not requirement.specifier.contains(pins.get(name, "0"), prereleases=True):
            said.append(f"{requirement} does not fit its pin {pins.get(name)}")
    return said


def test_the_lock_agrees_with_pyproject():
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("torch==2.13.0", "torch has a pin"),
        ("numpy @ file:///wheels/numpy.whl", "not a pin"),
        ("--index-url https://example.org", "not a pin"),
        ("numpy>=1", "not a pin"),
        ("ipykernel==6.29.0", "ipykernel>=7 does not fit its pin 6.29.0"),
    ],
)
def test_a_bad_line_is_found(added, said):
    assert said in " ".join(problems(GOOD + added + "\n"))


def test_a_missing_pin_is_found():
    without = "\n".join(line for line in GOOD.splitlines() if not line.startswith("jupyterlab=="))
    assert "does not fit its pin None" in " ".join(problems(without))
