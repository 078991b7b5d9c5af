"""apptainer.def played by Charliecloud: its %files copied, its %post and %test run on the same base.

The stand-in for a machine on which Apptainer cannot be had. `ch-run` needs no privileges and knows no .def.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster import image
from workshop.site.apptainer_command import IMAGE_PATH


def play(base: Path, into: Path) -> image.Image:
    """The image in ``into/image``. AssertionError with the output where %post or %test fails."""
    assert sys.version_info[:2] == image.SUITES_PYTHON, "the stand-in takes the packages of this environment"
    folder = into / "image"
    binds, _ = image.packages_or_pip(into)
    done = image.run(["cp", "-a", base, folder], 60)
    assert done.returncode == 0, done.stdout
    for bind in binds:
        (folder / bind.lstrip("/")).mkdir(parents=True, exist_ok=True)
    parts = sections((image.ROOT / "apptainer.def").read_text(), {"PACKAGES": binds[0]})
    for line in parts["files"].splitlines():
        if line.strip():
            source, target = line.split()
            place = folder / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (image.ROOT / source).is_dir() else shutil.copy
            copy(image.ROOT / source, place)
    said = inside(folder, binds, parts["post"], write=True) + inside(folder, binds, parts["test"])
    return image.Image(folder, "charliecloud", said, tuple(binds))


def sections(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """The text of each section, its {{ ARGUMENTS }} filled in."""
    parts = {
        part.split("\n", 1)[0].strip(): part.split("\n", 1)[1]
        for part in re.split(r"^%(?=\w)", text, flags=re.M)[1:]
    }
    lines = [line.strip() for line in parts["arguments"].splitlines() if "=" in line and "#" not in line]
    values = dict(line.split("=", 1) for line in lines) | dict(given)
    return {name: re.sub(r"\{\{ (\w+) \}\}", lambda m: values[m[1]], part) for name, part in parts.items()}


def inside(folder: Path, binds: list[str], script: str, write: bool = False) -> str:
    """What a shell script says in the image."""
    words = ["ch-run", *(["--write"] if write else []), "--unset-env=*", f"--set-env=PATH={IMAGE_PATH}"]
    words += ["--set-env=HOME=/tmp", *(f"--bind={bind}:{bind}" for bind in binds), str(folder)]
    environment = {**os.environ, "USER": os.environ.get("USER") or "root"}
    done = image.run([*words, "--", "sh", "-c", script], image.BUILD_SECONDS, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
