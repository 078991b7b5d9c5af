"""The project's own image, built for real on a machine that reaches packages and no registry of images.

    base      a Debian from packages (mmdebstrap), kept between runs
    Apptainer from Debian's sid, beside the system (get_apptainer.sh), kept between runs
    image     `apptainer build --sandbox` of apptainer.def on that base: its %files, %post, %environment and %test

Installing all of the packages takes a minute; so the image takes them, bound, from the environment of the tests
when the base's Python is the same version (`PACKAGES` in apptainer.def). WORKSHOP_FULL_IMAGE=1 installs them with
pip, from wherever this machine's pip is set up to look.

Where Apptainer cannot be had, Charliecloud plays the same file on the same base.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from workshop.assets import is_ready
from workshop.assets.store import place
from workshop.assets.table import asset
from workshop.site.spec import SiteSpec

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PACKAGES = (
    "mmdebstrap",
    "patchelf",
    "libseccomp2",
    "libsqlite3-0",
    "squashfs-tools",
    "squashfuse",
    "uidmap",
    "fakeroot",
)
STAND_IN = ("charliecloud",)
SUITE, SUITES_PYTHON = "bookworm", (3, 11)
GET_SECONDS, BASE_SECONDS, BUILD_SECONDS = 120, 180, 110
FULL_SECONDS = 900
ASSET = "digits-5k"


@dataclass(frozen=True)
class Image:
    """A folder with a whole system in it, what runs it, and what ``%test`` said."""

    folder: Path
    runtime: str
    said: str
    binds: tuple[str, ...]

    def site(self, jobs: Path) -> SiteSpec:
        """A site whose container this is."""
        return SiteSpec(runtime=self.runtime, container=str(self.folder), binds=self.binds, jobs=str(jobs))


def cache() -> Path:
    """Where the base and Apptainer are kept; both can be made again."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "workshop-cluster-tests"
    place.mkdir(parents=True, exist_ok=True)
    return place


@contextlib.contextmanager
def made_once(place: Path) -> Iterator[Path | None]:
    """A new folder that becomes ``place`` when the block ends well; None where it is there already."""
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            yield None
            return
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        work.chmod(0o755)
        try:
            yield work
            work.rename(place)
        finally:
            if work.exists():
                shutil.rmtree(work)


def run(command: Sequence[str], seconds: float, **options) -> subprocess.CompletedProcess[str]:
    """A command and its text; none of it is left when the time is up (returncode 124, as timeout(1) has it)."""
    words = ["timeout", "--kill-after=5", str(seconds), *map(str, command)]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", timeout=seconds + 30, check=False, **options,
    )  # fmt: skip


def install(packages: Sequence[str]) -> str:
    """Debian's packages, where they are not there; what went wrong, or ""."""
    asked = ["dpkg-query", "--show", "--showformat=${db:Status-Status}\\n", *packages]
    if shutil.which("dpkg-query") and set(run(asked, 20).stdout.split()) == {"installed"}:
        return ""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{' '.join(packages)} are not installed, and only root with apt-get can install them"
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"]
    done = run([*command, *packages], 200, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    return f"apt-get install: {done.stdout.strip().splitlines()[-1]}" if done.returncode else ""


def base() -> Path:
    """A Debian with Python, made of packages; skips where they cannot be reached."""
    kept = cache() / f"base-{SUITE}"
    with made_once(kept) as work:
        if work is not None:
            left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
            command = [
                "mmdebstrap",
                "--quiet",
                "--variant=essential",
                "--include=python3,python3-venv,libstdc++6",
            ]
            quick = ["--dpkgopt=force-unsafe-io", '--aptopt=Acquire::Languages "none"']
            done = run(
                [*command, *quick, *left_out, SUITE, work, f"deb {mirror()} {SUITE} main"], BASE_SECONDS
            )
            if done.returncode:
                pytest.skip(f"no base from packages: mmdebstrap: {done.stdout.strip()[-300:]}")
            for name in ("hosts", "resolv.conf", "hostname"):  # the machine's are laid over these
                (work / "etc" / name).touch()
            for node in (work / "dev").iterdir():  # nobody may make device nodes in a user namespace
                shutil.rmtree(node) if node.is_dir() and not node.is_symlink() else node.unlink()
    return kept


def mirror() -> str:
    """The Debian mirror that this machine uses already."""
    for name in ("sources.list.d/debian.sources", "sources.list"):
        path = Path("/etc/apt") / name
        found = (
            re.search(r"^(?:URIs: |deb (?:\[.*\] )?)(http\S+)", path.read_text(), re.M)
            if path.exists()
            else None
        )
        if found:
            return found[1]
    pytest.skip("apt's sources name no mirror of Debian to take packages from")


def apptainer() -> tuple[Path | None, str]:
    """An Apptainer that starts: the machine's, else one from Debian's sid; else None and why."""
    if present := shutil.which("apptainer"):
        return Path(present), ""
    place = cache() / "apptainer"
    program = place / "usr/bin/apptainer"
    with (cache() / ".apptainer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if starts(program):
            return program, ""
        # Its libc is found by a full path: it is unpacked where it will stay.
        shutil.rmtree(place, ignore_errors=True)
        done = run(["bash", HERE / "get_apptainer.sh", place, "sid", mirror()], GET_SECONDS)
        if done.returncode == 0 and starts(program):
            return program, ""
        shutil.rmtree(place, ignore_errors=True)
    return None, f"get_apptainer.sh: {done.stdout.strip()[-300:]}"


def starts(program: Path) -> bool:
    """Whether the program is there and says its version."""
    return program.exists() and run([program, "--version"], 20).returncode == 0


def build(into: Path, arguments: Sequence[str] = ()) -> Image:
    """The image in ``into``; skips with a plain reason where this machine can build none."""
    if os.geteuid() != 0:
        pytest.skip("building an image from packages needs root")
    if wrong := install(PACKAGES):
        pytest.skip(f"no image can be built: {wrong}")
    program, why = apptainer()
    if program is None:
        if wrong := install(STAND_IN):
            pytest.skip(f"neither Apptainer ({why}) nor Charliecloud ({wrong})")
        from tests.cluster.stand_in import play

        return play(base(), into)
    binds, words = packages_or_pip(into)
    folder = prepared_base(into, binds)
    for bind in binds:
        words += ["--bind", bind]
    if asset := kept_asset(into):
        binds.append(f"{asset}:/opt/cache")
        words += ["--build-arg", f"ASSETS={ASSET}", "--build-arg", "CACHE=/opt/cache", "--bind", binds[-1]]
        (folder / "opt/cache").mkdir()
    words += ["--build-arg", "BOOTSTRAP=localimage", "--build-arg", f"BASE={folder}", *arguments]
    command = [
        sys.executable,
        str(HERE / "in_user_namespace.py"),
        str(program),
        "build",
        "--force",
        "--sandbox",
    ]
    (into / "tmp").mkdir()
    environment = {
        **os.environ,
        "APPTAINER_TMPDIR": str(into / "tmp"),
        "APPTAINER_CACHEDIR": str(into / "cache"),
    }
    started, limit = time.monotonic(), FULL_SECONDS if full() else BUILD_SECONDS
    done = run([*command, *words, into / "image", "apptainer.def"], limit, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    print(f"image built in {time.monotonic() - started:.1f} s")
    return Image(into / "image", "apptainer", done.stdout, () if full() else tuple(binds[:1]))


def kept_asset(into: Path) -> Path | None:
    """A cache with the smallest data set alone, as this machine has it; None where it has not."""
    if not is_ready(ASSET):
        return None
    (into / "assets").mkdir()
    done = run(["cp", "-r", place(asset(ASSET)), into / "assets"], 30)
    assert done.returncode == 0, done.stdout
    return into / "assets"


def full() -> bool:
    """Whether pip installs everything into the image."""
    return bool(os.environ.get("WORKSHOP_FULL_IMAGE")) or sys.version_info[:2] != SUITES_PYTHON


def packages_or_pip(into: Path) -> tuple[list[str], list[str]]:
    """Binds and build arguments: the packages of this environment, or what pip needs to install them."""
    if not full():
        import torch

        place = Path(torch.__file__).resolve().parents[1]
        return [str(place)], ["--build-arg", f"PACKAGES={place}"]
    # %post sees no variable of this shell: pip's settings, wherever they come from, go in as a file.
    listed = run([sys.executable, "-m", "pip", "config", "list"], 30).stdout
    settings = {}
    for key, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.M):
        settings[key] = value
    config = into / "pip.conf"
    config.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    folders = {text.removeprefix("file://") for value in settings.values() for text in value.split()}
    binds = {str(Path(f)) for f in folders if f.startswith("/") and Path(f).is_dir()} | {"/etc/ssl/certs"}
    binds |= {str(Path(f).parent) for f in folders if f.startswith("/") and f.endswith("/simple")}
    outer = [b for b in sorted(binds) if not any(Path(o) in Path(b).parents for o in binds)]
    return [*outer, f"{config}:/etc/pip.conf"], ["--build-arg", "TORCH=torch==2.13.0+cpu"]


def prepared_base(into: Path, binds: Sequence[str]) -> Path:
    """A copy of the base, of hard links, with a place for every bind."""
    folder = into / "base"
    done = run(["cp", "-a", base(), folder], 60)
    assert done.returncode == 0, done.stdout
    for bind in binds:
        source, _, target = bind.partition(":")
        place = folder / (target or source).lstrip("/")
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.touch()
    return folder
