"""What a GPU machine without a package index is missing: wheels and assets, in one folder that travels along.

    python tools/gpu_bundle.py collect              here: fills .gpu_bundle (git ignores it)
    setup=$(python3 tools/gpu_bundle.py unpack) && eval "$setup" && ...    there: how every command begins

``collect`` takes what lessons and `make gpu` need, leaves out what that machine's Python has
(``tools/gpu_machine_packages.txt``), follows what each wheel asks for, and checks: every tag fits that
Python, every requirement is met, each package is there once, the folder keeps its limit. DeepSpeed comes as
source and is built here; bitsandbytes keeps the libraries of one CUDA only, 4 MB of 125.

A folder may be too large for one journey. Then ``--parts 4`` cuts it into four (``.gpu_bundle/1`` to ``4``,
all wheels in the first), and ``unpack`` takes what has come. In four there is room for all that lessons ask:
``--assets sotu,questions,digits-5k,fashion-mnist,smollm2``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_bytes
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".gpu_bundle"
HERE_ALREADY = Path(__file__).with_name("gpu_machine_packages.txt")
MIB = 2**20
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 36, 35, 34, 31, 28, 27, 26, 24, 17)),
    *(f"manylinux{old}_x86_64" for old in (2014, 2010, 1)),
)
# What lessons, ranks that stay and `make gpu` import; what these need follows.
WANTED = (
    "ipykernel ipython jupyter_client nbclient nbformat nbval ipywidgets pyzmq cloudpickle gguf torchao "
    "bitsandbytes deepspeed pytest-rerunfailures jupytext torchft"
).split()
BUILT_HERE = frozenset({"deepspeed"})  # source only, nothing to compile until a kernel is asked for
ASSETS = ("sotu", "questions", "digits-5k")  # fashion-mnist has 31 MB, smollm2 93: name them, and take parts
PIECE_BYTES = 8 * MIB  # of an asset's file, so that parts come out even; packed with zlib
_CUDA_OF = re.compile(r"libbitsandbytes_(cuda|rocm|xpu)\d+")


class BundleError(RuntimeError):
    """The folder would not work on the other side; the text says why."""


# ---------------------------------------------------------------------------- names


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str | None]:
    """Names and versions of lines ``name==version`` or ``name``; comments are skipped."""
    versions: dict[str, str | None] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, version = line.strip().partition("==")
            versions[canonical(name)] = version or None
    return versions


def marker_environment(python: str) -> dict[str, str]:
    """What markers of requirements read, on the other side (PEP 508)."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.3",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.3",
        "platform_python_implementation": "CPython",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "platform_release": "",
        "platform_version": "",
        "sys_platform": "linux",
        "os_name": "posix",
        "extra": "",
    }


# ---------------------------------------------------------------------------- wheels


def name_of(wheel: Path) -> str:
    """The distribution in a wheel's file name."""
    return canonical(wheel.name.split("-")[0])


def version_of(wheel: Path) -> str:
    """The version in a wheel's file name."""
    return wheel.name.split("-")[1]


def requirements_of(wheel: Path, python: str) -> Iterator[Any]:
    """What a wheel asks for on the other side, without its extras."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
        metadata = message_from_bytes(archive.read(name))
    environment = marker_environment(python)
    for line in metadata.get_all("Requires-Dist") or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            yield wanted


def download(names: Iterable[str], python: str, locked: Mapping[str, str | None], folder: Path) -> None:
    """The wheels of these names, at the versions of the lock, for the other side's Python."""
    requirements = [f"{name}=={locked[name]}" if locked.get(name) else name for name in sorted(names)]
    pip = [sys.executable, "-m", "pip"]
    built = [one for one in requirements if canonical(one.split("==")[0]) in BUILT_HERE]
    ready = [one for one in requirements if one not in built]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    chosen = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    for command in (
        [*pip, "download", "-q", "--no-deps", *chosen, "-d", str(folder), *ready] if ready else None,
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), *built]
        if built
        else None,
    ):
        if command is None:
            continue
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "DS_BUILD_OPS": "0"}
        )
        if done.returncode:
            raise BundleError(f"pip could not have {', '.join(ready or built)}: {done.stderr[-600:]}")


def collect_wheels(
    folder: Path, python: str, there: Mapping[str, str | None], locked: Mapping[str, str | None]
) -> None:
    """Every wanted package that is not there, and what these ask for, level by level."""
    missing = {canonical(name) for name in WANTED} - set(there)
    while missing:
        download(missing, python, locked, folder)
        have = {name_of(wheel) for wheel in folder.glob("*.whl")}
        if lost := missing - have:
            raise BundleError(f"pip has said nothing and left out {', '.join(sorted(lost))}")
        needed = {
            canonical(one.name) for wheel in folder.glob("*.whl") for one in requirements_of(wheel, python)
        }
        missing = needed - have - set(there)


def strip_bitsandbytes(wheel: Path, cuda: str) -> None:
    """Keep one CUDA's library beside the CPU's. The list of files (RECORD) goes on naming what is left."""
    smaller = wheel.with_suffix(".smaller")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as new:
        kept = [
            info
            for info in old.infolist()
            if not (match := _CUDA_OF.search(info.filename)) or match[0] == f"libbitsandbytes_{cuda}"
        ]
        names = {info.filename for info in kept}
        if not any(cuda in name for name in names):
            smaller.unlink()
            raise BundleError(f"{wheel.name} has no library for {cuda}: name another with --cuda")
        for info in kept:
            data = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines(keepends=True)
                data = "".join(line for line in lines if line.split(",")[0] in names).encode()
            new.writestr(info, data)
    smaller.replace(wheel)


def problems(wheels: Iterable[Path], python: str, there: Mapping[str, str | None]) -> list[str]:
    """Why this folder would not install on the other side; nothing where it would."""
    from packaging.tags import compatible_tags, cpython_tags
    from packaging.utils import parse_wheel_filename
    from packaging.version import Version

    version = tuple(int(part) for part in python.split("."))
    known = list(PLATFORMS)
    fitting = {*cpython_tags(version, platforms=known), *compatible_tags(version, platforms=known)}
    versions: dict[str, str | None] = {}
    wrong = []
    for wheel in sorted(wheels):
        project, number, _, tags = parse_wheel_filename(wheel.name)
        name = str(project)
        if canonical(name) in versions:
            wrong.append(f"{name} is there twice: {versions[canonical(name)]} and {number}")
        if not tags & fitting:
            wrong.append(f"{wheel.name} is not for Python {python} on x86-64 Linux")
        versions[canonical(name)] = str(number)
    for wheel in sorted(wheels):
        for one in requirements_of(wheel, python):
            name = canonical(one.name)
            have = versions.get(name) or there.get(name)
            if name not in versions and name not in there:
                wrong.append(f"{wheel.name} asks for {one}, which is not there")
            elif have and Version(have) not in one.specifier:
                wrong.append(f"{wheel.name} asks for {one}, and there is {have}")
    return wrong


# ---------------------------------------------------------------------------- assets and parts


def collect_assets(names: Iterable[str], folder: Path) -> None:
    """The assets' folders as the cache has them, large files in pieces."""
    from workshop.assets import store
    from workshop.assets.table import asset

    for name in names:
        source = store.folder(name)
        target = folder / store.place(asset(name)).name
        for path in sorted(p for p in source.rglob("*") if p.is_file()):
            data, relative = path.read_bytes(), path.relative_to(source)
            for number, start in enumerate(range(0, max(len(data), 1), PIECE_BYTES)):
                piece = target / f"{relative}.piece{number:03d}"
                piece.parent.mkdir(parents=True, exist_ok=True)
                piece.write_bytes(zlib.compress(data[start : start + PIECE_BYTES]))


def cut_into_parts(folder: Path, parts: int) -> list[int]:
    """Move every file into folders 1, 2, ..., each time into the one that holds least; the bytes of each.

    The wheels all go into the first: with it every command can start.
    """
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: -p.stat().st_size)
    wheels = [path for path in files if path.suffix == ".whl"]
    held = dict.fromkeys(range(1, parts + 1), 0)
    for path in [*wheels, *(path for path in files if path not in wheels)]:
        number = 1 if path in wheels else min(held, key=lambda one: held[one])
        held[number] += path.stat().st_size
        target = folder / str(number) / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    for name in ("wheels", "assets"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return list(held.values())


def tracked_bytes() -> int:
    """Bytes of the files that git would send along with the folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    paths = (ROOT / name for name in listed.stdout.decode().split("\0") if name)
    return sum(path.lstat().st_size for path in paths if path.exists())


def size_of(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def collect(how: argparse.Namespace) -> int:
    """Fill the folder, check it, say what is in it."""
    there = pins(how.there.read_text("utf-8"))
    locked = pins((ROOT / "constraints.txt").read_text("utf-8"))
    shutil.rmtree(how.folder, ignore_errors=True)
    wheels = how.folder / "wheels"
    wheels.mkdir(parents=True)
    collect_wheels(wheels, how.python, there, locked)
    for wheel in wheels.glob("bitsandbytes-*.whl"):
        strip_bitsandbytes(wheel, how.cuda)
    names = [name for name in how.assets.split(",") if name]
    collect_assets(names, how.folder / "assets")
    files = list(wheels.glob("*.whl"))
    if wrong := problems(files, how.python, there):
        raise BundleError("\n".join(wrong))
    total, beside = size_of(how.folder), tracked_bytes()
    print(f"{len(files)} wheels for Python {how.python}, assets {', '.join(names) or 'none'}:")
    print(f"  {total / MIB:.1f} MiB in {how.parts} part(s), beside {beside / MIB:.1f} MiB of the repository")
    for wheel in sorted(files, key=lambda p: -p.stat().st_size)[:6]:
        print(f"  {wheel.stat().st_size / MIB:6.1f} MiB {wheel.name}")
    largest = max(cut_into_parts(how.folder, how.parts)) if how.parts > 1 else total
    if largest + beside > how.limit * MIB:
        raise BundleError(
            f"{(largest + beside) / MIB:.1f} MiB a journey, and the limit is {how.limit} MiB: "
            "take more --parts, or leave assets out"
        )
    return 0


# ---------------------------------------------------------------------------- the other side


def unpack(how: argparse.Namespace) -> int:
    """Install what has come, and print the variables that the shell is to set. Its own words go to stderr."""
    how.into.mkdir(parents=True, exist_ok=True)
    wheels = sorted({path.name: path for path in how.folder.rglob("*.whl")}.values())
    site, cache = how.into / "site", how.into / "cache"
    new = [wheel for wheel in wheels if not (how.into / "installed" / wheel.name).exists()]
    if new:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        target = ["--no-cache-dir", "--upgrade", "--target", str(site)]
        subprocess.run([*pip, *target, *map(str, new)], check=True, stdout=sys.stderr)
        (how.into / "installed").mkdir(exist_ok=True)
        for wheel in new:
            (how.into / "installed" / wheel.name).touch()
    for piece in how.folder.rglob("*.piece*"):
        kept = how.into / "pieces" / piece.relative_to(_assets_above(piece))
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(piece, kept)
    whole = join_pieces(how.into / "pieces", cache)
    tree = how.into / "tree"
    copied = copy_changed(ROOT, tree)
    print(f"{len(wheels)} wheels, assets: {', '.join(whole) or 'none'}, {copied} new files", file=sys.stderr)
    path = os.pathsep.join([str(tree), str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    print(f"cd '{tree}' && export PYTHONPATH='{path}' WORKSHOP_CACHE='{cache}' WORKSHOP_OFFLINE=1")
    return 0


def copy_changed(source: Path, target: Path) -> int:
    """Bring a copy of the tree, without hidden folders, up to date; how many files are new."""
    # What imports from the tree during a journey misses modules. A record that is there was measured since.
    copied, records = 0, target / "data" / "measurements" / "gpu"
    for path in (p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        relative = path.relative_to(source)
        there = target / relative
        old = there.read_bytes() if there.exists() else None
        stays = relative.parts[0].startswith(".") or (old and records in there.parents)
        if not stays and old != path.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there.with_suffix(".new")).replace(there)
            copied += 1
    return copied


def _assets_above(piece: Path) -> Path:
    return next(parent for parent in piece.parents if parent.name == "assets")


def join_pieces(pieces: Path, cache: Path) -> list[str]:
    """Put together every asset whose pieces have all come, as its list tells; the folders' names."""
    whole = []
    for folder in sorted(p for p in pieces.glob("*") if p.is_dir()):
        files: dict[str, list[Path]] = {}
        for piece in sorted(folder.rglob("*.piece*")):
            files.setdefault(str(piece.relative_to(folder)).rpartition(".piece")[0], []).append(piece)
        listed = files.get("contents.json")
        if not listed:
            continue
        joined = {
            name: b"".join(zlib.decompress(piece.read_bytes()) for piece in parts)
            for name, parts in files.items()
        }
        contents = json.loads(joined["contents.json"])
        there = {name: sha256(data).hexdigest() for name, data in joined.items()}
        if any(there.get(name) != entry["sha256"] for name, entry in contents.items()):
            continue  # a piece is still to come
        with tempfile.TemporaryDirectory(dir=pieces.parent) as made:
            for name, data in joined.items():
                path = Path(made, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            shutil.copytree(made, cache / folder.name, dirs_exist_ok=True)
        whole.append(folder.name)
    return whole


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    fill = steps.add_parser("collect", help="here, where there is an index")
    fill.add_argument("--python", default="3.12", help="of the other side")
    fill.add_argument("--cuda", default="cuda130", help="which of bitsandbytes' libraries to keep")
    fill.add_argument("--there", type=Path, default=HERE_ALREADY, help="what is installed on the other side")
    fill.add_argument("--assets", default=",".join(ASSETS), help="names, with commas; nothing for none")
    fill.add_argument("--parts", type=int, default=1, help="journeys in which it travels")
    fill.add_argument("--limit", type=float, default=64, help="MiB a journey, the repository included")
    install = steps.add_parser("unpack", help="there; its output is for eval")
    install.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "workshop-gpu")
    for one in (fill, install):
        one.add_argument("--folder", type=Path, default=FOLDER)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Collect here, unpack there."""
    how = arguments(words)
    try:
        return collect(how) if how.step == "collect" else unpack(how)
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
