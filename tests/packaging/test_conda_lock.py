"""conda-lock.yml: environment.yml, solved; every package with its hash, none too many."""

import tomllib
import urllib.error
import urllib.request

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from tools.conda_lock import (
    ENVIRONMENT,
    LOCK,
    PLATFORM,
    ROOT,
    main,
    of_another_lock,
    of_lock,
    problems,
    read_environment,
    solve,
    written,
)

GOOD, ASKED = LOCK.read_text(), ENVIRONMENT.read_text()
PACKAGES = {entry["name"]: entry for entry in yaml.safe_load(GOOD)["package"]}
CHANNEL = "https://conda.anaconda.org/conda-forge/"


def without(name):
    content = yaml.safe_load(GOOD)
    content["package"] = [entry for entry in content["package"] if entry["name"] != name]
    return yaml.safe_dump(content)


def test_the_lock_is_the_environment_solved(capsys):
    assert problems(GOOD, ASKED) == []
    assert main(["--check"]) == 0
    assert "conda-lock.yml is environment.yml, solved" in capsys.readouterr().out


def test_its_python_is_one_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = PACKAGES["python"]["version"]
    assert version in SpecifierSet(project["requires-python"])
    assert f"Programming Language :: Python :: {version.rpartition('.')[0]}" in project["classifiers"]


def test_every_package_has_its_place_and_its_hash():
    assert len(PACKAGES) > 20
    for entry in PACKAGES.values():
        assert entry["url"].startswith((f"{CHANNEL}{PLATFORM}/", f"{CHANNEL}noarch/")), entry["url"]
        assert [len(bytes.fromhex(entry["hash"][kind])) for kind in ("md5", "sha256")] == [16, 32]
    content = yaml.safe_load(GOOD)
    assert [channel["url"] for channel in content["metadata"]["channels"]] == read_environment(ASKED)[0]
    assert content["metadata"]["custom_metadata"]["records"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("python >=3.11,<3.14", "python >=3.13,<3.14", "the locked packages do not make the environment"),
        (
            "  - pip >=23.1\n",
            "  - pip >=23.1\n  - numpy\n",
            "the locked packages do not make the environment",
        ),
        ("  - pip >=23.1\n", "", "pip-"),
        ("pip >=23.1", "pip >=23.2", "environment.yml has changed since"),
    ],
)
def test_an_environment_that_the_lock_is_not(old, new, said):
    assert old in ASKED
    assert said in " ".join(problems(GOOD, ASKED.replace(old, new)))


@pytest.mark.parametrize("name", ["python", "openssl", "tzdata"])
def test_a_package_that_is_missing(name):
    assert "the locked packages do not make the environment" in " ".join(problems(without(name), ASKED))


def test_a_package_whose_file_is_another(tmp_path):
    place = PACKAGES["bzip2"]["url"]
    wrong = GOOD.replace(place, place.replace(f"-{PACKAGES['bzip2']['version']}-", "-0.1-"))
    assert wrong != GOOD
    with pytest.raises(ValueError, match=r"bzip2 \S+ has the file bzip2-0\.1-"):
        problems(wrong, ASKED)


def test_made_again_from_what_is_locked_it_is_the_same():
    records = solve([of_lock(GOOD)], read_environment(ASKED)[1])
    again = written(records, ASKED, yaml.safe_load(GOOD)["metadata"]["custom_metadata"]["records"])
    assert yaml.safe_load(again) == yaml.safe_load(GOOD)


def test_packages_of_another_projects_lock(tmp_path):
    entry = PACKAGES["tzdata"]
    lock = f"""version: 6
environments:
  default:
    channels:
    - url: {CHANNEL}
    packages:
      {PLATFORM}:
      - conda: {entry["url"]}
packages:
- conda: {entry["url"]}
  sha256: {entry["hash"]["sha256"]}
  md5: {entry["hash"]["md5"]}
"""
    path = tmp_path / "pixi.lock"
    path.write_text(lock)
    assert [record.url for record in solve([of_another_lock(path)], ["tzdata"])] == [entry["url"]]
    path.write_text(lock.replace(PLATFORM, "osx-64"))
    with pytest.raises(
        ValueError, match="has no package for linux-64: give the pixi.lock of a project that has"
    ):
        of_another_lock(path)


def test_its_packages_without_a_word_on_whose_they_are(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--records", str(tmp_path / "pixi.lock")])
    assert "the lock says where its packages were found" in capsys.readouterr().err


def test_the_channel_solves_it_too():
    """What the channel has today; skipped where it cannot be reached."""
    request = urllib.request.Request(f"{CHANNEL}{PLATFORM}/repodata.json.zst", method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except (urllib.error.URLError, OSError) as error:
        pytest.skip(f"conda-forge cannot be reached from here ({error})")
    channels, specs = read_environment(ASKED)
    pins = [f"{entry['name']} =={entry['version']}" for entry in PACKAGES.values()]
    assert {record.name.normalized for record in solve(channels, [*specs, *pins])} >= set(PACKAGES)
