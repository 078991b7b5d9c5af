"""environment.yml: strict for conda, and no second list of dependencies."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rattler import BuildString, MatchSpec, PackageRecord

ROOT = Path(__file__).parents[2]
KEYS = {"name", "channels", "dependencies", "prefix", "variables"}
GOOD = (ROOT / "environment.yml").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(text):
    """The name, conda's requirements by name, pip's lines; ValueError where conda would not take it."""
    found = yaml.safe_load(text)
    if unknown := set(found) - KEYS:
        raise ValueError(f"unknown keys: {unknown}")
    for key in ("channels", "dependencies"):
        if not isinstance(found.get(key), list) or not found[key]:
            raise ValueError(f"{key} must be a list, and not empty")
    if not all(isinstance(channel, str) for channel in found["channels"]):
        raise ValueError(f"channels are names: {found['channels']}")
    conda, pip = {}, []
    for entry in found["dependencies"]:
        if isinstance(entry, dict):
            if set(entry) != {"pip"}:
                raise ValueError(f"unknown kind of dependency: {entry}")
            pip += entry["pip"]
        else:
            try:
                spec = MatchSpec(entry, strict=True)
            except Exception as error:
                raise ValueError(f"not a conda requirement: {entry}: {error}") from error
            if spec.name.normalized in conda:
                raise ValueError(f"{spec.name.normalized} is named twice")
            conda[spec.name.normalized] = spec
    if pip and "pip" not in conda:
        raise ValueError("pip's part needs pip from conda")
    return found["name"], conda, [shlex.split(line) for line in pip]


def problems(text):
    """What disagrees with pyproject.toml."""
    name, conda, pip = read(text)
    said = [f"the name is {name}"] * (
        name not in PROJECT["scripts"]
    )  # the environment is called as the command
    said += [
        f"conda installs {other}: only pyproject.toml lists packages"
        for other in set(conda) - {"python", "pip"}
    ]
    supported = SpecifierSet(PROJECT["requires-python"])
    python = "Programming Language :: Python :: 3."
    listed = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if line.startswith(python)]
    for minor in range(8, 20):
        version = f"3.{minor}"
        by_conda = _matches(conda["python"], version)
        if by_conda != (version in supported and version in listed):
            takes = "takes" if by_conda else "refuses"
            said.append(f"Python {version}: conda {takes} it, pyproject.toml does not agree")
    for line in pip:
        said += _pip_problems(line)
    if not any(line[0] == "--editable" for line in pip):
        said.append("pip does not install the workshop")
    return said


def _matches(spec, version):
    """What conda's own solver would say of that Python."""
    return spec.matches(PackageRecord("python", f"{version}.1", BuildString("0_cpython"), 0, "linux-64"))


def installed(text):
    """Every requirement that pip is handed in the end."""
    _, _, pip = read(text)
    extras = {
        e for line in pip if line[0] == "--editable" for e in Requirement(f"workshop{line[1][1:]}").extras
    }
    wanted = [*PROJECT["dependencies"], *(r for e in extras for r in PROJECT["optional-dependencies"][e])]
    return {str(Requirement(text)) for text in wanted}


def _pip_problems(line):
    if line[0] == "--constraint" and len(line) == 2:
        return [] if (ROOT / line[1]).is_file() else [f"no file {line[1]}"]
    if line[0] == "--editable" and len(line) == 2:
        extras = Requirement(f"workshop{line[1].removeprefix('.')}").extras
        return [f"no extra {e}" for e in extras - set(PROJECT["optional-dependencies"])]
    return [f"pip installs {line}: only pyproject.toml lists packages"]


def test_environment_yml_agrees_with_pyproject():
    assert problems(GOOD) == []


def test_what_it_installs_is_what_make_test_installs():
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"^test:\n\t@\$\(SETUP\) --extras (\S+)", makefile, re.M)[1].split(",")
    wanted = [*PROJECT["dependencies"], *(r for e in extras for r in PROJECT["optional-dependencies"][e])]
    assert installed(GOOD) == {str(Requirement(text)) for text in wanted}


def test_every_extra_is_made_of_requirements_and_of_extras_that_there_are():
    extras = PROJECT["optional-dependencies"]
    for listed in extras.values():
        for requirement in map(Requirement, listed):
            assert requirement.name != PROJECT["name"] or requirement.extras <= set(extras)
            assert requirement.name == PROJECT["name"] or requirement.specifier, (
                f"{requirement} has no lower bound"
            )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("python >=3.11,<3.14", "python >=3.10,<3.14", "Python 3.10: conda takes it"),
        ("python >=3.11,<3.14", "python >=3.12,<3.14", "Python 3.11: conda refuses it"),
        ("python >=3.11,<3.14", "python", "Python 3.8: conda takes it"),
        ("  - pip >=23.1\n", "  - pip >=23.1\n  - numpy\n", "conda installs numpy"),
        ("      - --editable .[dev]", "      - torch>=2", "pip installs ['torch>=2']"),
        ("      - --editable .[dev]\n", "", "does not install the workshop"),
        (".[dev]", ".[developer]", "no extra developer"),
        ("constraints.txt", "lock.txt", "no file lock.txt"),
        ("name: workshop", "name: course", "the name is course"),
    ],
)
def test_a_disagreement_is_found(old, new, said):
    assert old in GOOD
    assert said in " ".join(problems(GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("channels:", "chanels:", "unknown keys"),
        ("- pip:", "- pips:", "unknown kind of dependency"),
        ("python >=3.11,<3.14", "python >=3.11,,<3.14", "not a conda requirement"),
        ("  - pip >=23.1\n", "", "needs pip from conda"),
        ("  - pip >=23.1\n", "  - pip >=23.1\n  - pip\n", "pip is named twice"),
        ("channels:\n  - conda-forge\n  - nodefaults", "channels: conda-forge", "channels must be a list"),
    ],
)
def test_what_conda_would_refuse(old, new, said):
    assert old in GOOD
    with pytest.raises(ValueError, match=said):
        read(GOOD.replace(old, new))
