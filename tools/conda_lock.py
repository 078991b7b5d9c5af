"""Make conda-lock.yml: what `environment.yml` is on linux-64, package by package, each with its hash.

    python tools/conda_lock.py            solve with what the channels have now
    python tools/conda_lock.py --check    solve again with what is locked
    python tools/conda_lock.py --records pixi.lock --source "whose it is"

The third is for where the channels cannot be reached: it solves with the packages of another project's lock
alone, and the lock says whose they were.

The file is in the format of conda-lock, version 1, which micromamba and mamba read too:

    micromamba create --name workshop --file conda-lock.yml
    conda-lock install --name workshop conda-lock.yml

It holds conda's part, Python and pip. The rest is pip's, and `constraints.txt` is its lock: in the new
environment, ``pip install --constraint constraints.txt --editable ".[dev]"``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rattler
import yaml
from rattler import (
    BuildString,
    GenericVirtualPackage,
    LockFile,
    PackageName,
    PackageRecord,
    RepoDataRecord,
    Subdir,
    Version,
)
from rattler.exceptions import SolverError

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT, LOCK = ROOT / "environment.yml", ROOT / "conda-lock.yml"
PLATFORM = "linux-64"
SUBDIRS = [Subdir(PLATFORM), Subdir("noarch")]
# The oldest system that torch's own wheels are for (manylinux_2_28), with the kernel of that time.
SYSTEM = (("__unix", "0"), ("__linux", "4.18"), ("__glibc", "2.28"))
HEADER = """\
# environment.yml on linux-64: what conda installs, in the format of conda-lock. tools/conda_lock.py made it,
# and says how to install it and how to make it again. What pip installs on top is locked in constraints.txt.
"""


class Records:
    """Known packages as a source for the solver, in place of a channel."""

    def __init__(self, records: Sequence[RepoDataRecord]) -> None:
        self._records = records

    async def fetch_package_records(self, platform: Subdir, name: PackageName) -> list[RepoDataRecord]:
        """The packages of that name."""
        return [each for each in self._of(platform) if each.name.normalized == name.normalized]

    def package_names(self, platform: Subdir) -> list[str]:
        """All names."""
        return sorted({each.name.normalized for each in self._of(platform)})

    def _of(self, platform: Subdir) -> list[RepoDataRecord]:
        return [each for each in self._records if str(each.subdir) == str(platform)]


def read_environment(text: str) -> tuple[list[str], list[str]]:
    """The channels of an environment.yml, and what conda is asked for."""
    document = yaml.safe_load(text)
    channels = [name for name in document["channels"] if name != "nodefaults"]
    return channels, [entry for entry in document["dependencies"] if isinstance(entry, str)]


def solve(sources: Sequence[Any], specs: Sequence[str]) -> list[RepoDataRecord]:
    """The newest packages of ``sources`` that satisfy ``specs`` on the oldest system, by name.

    Raises:
        SolverError: There are none; the message says what lacks.
    """
    system = [GenericVirtualPackage(PackageName(n), Version(v), BuildString("0")) for n, v in SYSTEM]
    solving = rattler.solve(list(sources), specs, platforms=SUBDIRS, virtual_packages=system)
    return sorted(asyncio.run(solving), key=lambda record: record.name.normalized)


def of_another_lock(path: Path) -> Records:
    """The packages for linux-64 in a lock of pixi, whatever environments it has."""
    by_url: dict[str, RepoDataRecord] = {}
    for _, environment in LockFile.from_path(path).environments():
        for platform, records in environment.conda_repodata_records().items():
            if platform == PLATFORM:
                by_url |= {record.url: record for record in records}
    if not by_url:
        raise ValueError(f"{path} has no package for {PLATFORM}: give the pixi.lock of a project that has")
    return Records(list(by_url.values()))


def of_lock(text: str) -> Records:
    """The packages of a conda-lock.yml, as the solver wants them."""
    return Records([_record(entry) for entry in yaml.safe_load(text)["package"]])


def _record(entry: dict[str, Any]) -> RepoDataRecord:
    channel, subdir, file_name = entry["url"].rsplit("/", 2)
    name, version, build = file_name.removesuffix(".conda").removesuffix(".tar.bz2").rsplit("-", 2)
    if (name, version) != (entry["name"], entry["version"]):
        raise ValueError(f"{entry['name']} {entry['version']} has the file {file_name}")
    number = int(build.rpartition("_")[2]) if build.rpartition("_")[2].isdecimal() else 0
    package = PackageRecord(
        name,
        version,
        BuildString(build),
        number,
        subdir,
        noarch="generic" if subdir == "noarch" else None,
        depends=[f"{other} {spec}".strip() for other, spec in entry["dependencies"].items()],
        sha256=bytes.fromhex(entry["hash"]["sha256"]),
        md5=bytes.fromhex(entry["hash"]["md5"]),
    )
    return RepoDataRecord(package, file_name, entry["url"], channel)


def written(records: Sequence[RepoDataRecord], environment: str, source: str) -> str:
    """The text of conda-lock.yml; ``source`` says where the records were found."""
    channels, _ = read_environment(environment)
    metadata = {
        "content_hash": {PLATFORM: digest(environment)},
        "channels": [{"url": name, "used_env_vars": []} for name in channels],
        "platforms": [PLATFORM],
        "sources": [ENVIRONMENT.name],
        "custom_metadata": {"records": source},
    }
    content = {"version": 1, "metadata": metadata, "package": [_entry(record) for record in records]}
    return HEADER + yaml.safe_dump(content, sort_keys=False, width=200)


def _entry(record: RepoDataRecord) -> dict[str, Any]:
    if not record.sha256 or not record.md5:
        raise ValueError(f"{record.url} has no hash: solve with the channel's own records")
    depends = (text.partition(" ") for text in record.depends)
    return {
        "name": record.name.normalized,
        "version": str(record.version),
        "manager": "conda",
        "platform": PLATFORM,
        "dependencies": {name: spec for name, _, spec in depends if not name.startswith("__")},
        "url": record.url,
        "hash": {"md5": record.md5.hex(), "sha256": record.sha256.hex()},
        "category": "main",
        "optional": False,
    }


def digest(environment: str) -> str:
    """What the lock keeps of the environment.yml that it was made from: a change is seen."""
    return hashlib.sha256(environment.encode()).hexdigest()


def problems(lock: str, environment: str) -> list[str]:
    """Why the lock is not the environment's, one sentence each."""
    wrong = []
    if yaml.safe_load(lock)["metadata"]["content_hash"] != {PLATFORM: digest(environment)}:
        wrong.append("environment.yml has changed since: run tools/conda_lock.py again")
    locked = {entry["url"] for entry in yaml.safe_load(lock)["package"]}
    try:
        solved = {record.url for record in solve([of_lock(lock)], read_environment(environment)[1])}
    except SolverError as error:
        return [*wrong, f"the locked packages do not make the environment: {error}"]
    return wrong + [f"{url} is not needed" for url in sorted(locked - solved)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the lock, or check it: 0, or 1 after what is wrong."""
    parser = argparse.ArgumentParser(description="Make conda-lock.yml from environment.yml.")
    parser.add_argument("--records", type=Path, metavar="PIXI_LOCK", help="packages to solve with")
    parser.add_argument("--source", default="", metavar="WORDS", help="whose packages --records names")
    parser.add_argument("--check", action="store_true", help="solve again with what is locked, write nothing")
    options = parser.parse_args(arguments)
    if bool(options.records) != bool(options.source):
        parser.error("--records and --source go together: the lock says where its packages were found")
    environment = ENVIRONMENT.read_text()
    if options.check:
        wrong = problems(LOCK.read_text(), environment)
        print("\n".join(wrong) or f"{LOCK.name} is {ENVIRONMENT.name}, solved")
        return bool(wrong)
    channels, specs = read_environment(environment)
    records = solve([of_another_lock(options.records)] if options.records else channels, specs)
    LOCK.write_text(written(records, environment, options.source or "the channels"))
    print(f"{LOCK.name}: {len(records)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
