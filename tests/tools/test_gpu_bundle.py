"""What travels to a machine without an index: closed under its requirements, fitting, in pieces that join again."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import gpu_bundle

ROOT = Path(__file__).parents[2]


def wheel(
    folder: Path, name: str, version: str = "1.0", needs=(), tag: str = "py3-none-any", files=()
) -> Path:
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    lines = "".join(f"Requires-Dist: {one}\n" for one in needs)
    contents = {f"{name}.py": f"here = {version!r}\n", **dict(files)}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}"
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    record = f"{info}/RECORD"
    contents[record] = "".join(f"{one},,\n" for one in [*contents, record])
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in contents.items():
            archive.writestr(inside, text)
    return path


def test_what_a_wheel_asks_for_is_followed_and_what_is_there_is_left_out(tmp_path, monkeypatch):
    shelf = {
        "first": ("second>=1", "torch>=2", "old; python_version < '3.12'", "plots; extra == 'all'"),
        "second": ("third",),
        "third": (),
    }
    asked = []

    def download(names, python, locked, folder):
        asked.append(sorted(names))
        for name in names:
            wheel(folder, name, needs=shelf[name])

    monkeypatch.setattr(gpu_bundle, "download", download)
    monkeypatch.setattr(gpu_bundle, "WANTED", ("first", "torch"))
    gpu_bundle.collect_wheels(tmp_path, "3.12", {"torch": "2.11.0"}, {})
    assert asked == [["first"], ["second"], ["third"]]
    assert gpu_bundle.problems(tmp_path.glob("*.whl"), "3.12", {"torch": "2.11.0"}) == []


@pytest.mark.parametrize(
    ("wheels", "said"),
    [
        ([("a", {"needs": ["b"]})], "asks for b, which is not there"),
        ([("a", {"needs": ["torch>=2.12"]})], "asks for torch>=2.12, and there is 2.11.0"),
        ([("a", {"tag": "cp311-cp311-manylinux_2_28_x86_64"})], "is not for Python 3.12"),
        ([("a", {"tag": "cp312-cp312-manylinux_2_28_aarch64"})], "is not for Python 3.12"),
        ([("a", {}), ("a", {"version": "2.0"})], "is there twice"),
    ],
)
def test_a_folder_that_would_not_install_is_found(tmp_path, wheels, said):
    made = [wheel(tmp_path, name, **options) for name, options in wheels]
    assert said in " ".join(gpu_bundle.problems(made, "3.12", {"torch": "2.11.0"}))


@pytest.mark.parametrize("tag", ["cp312-cp312-manylinux_2_17_x86_64", "cp310-abi3-manylinux2014_x86_64"])
def test_compiled_wheels_that_fit(tmp_path, tag):
    assert gpu_bundle.problems([wheel(tmp_path, "a", tag=tag)], "3.12", {}) == []


def test_bitsandbytes_keeps_one_cuda(tmp_path):
    names = [
        f"bitsandbytes/libbitsandbytes_{kind}.so"
        for kind in ("cpu", "cuda126", "cuda130", "rocm72", "xpu2025")
    ]
    path = wheel(tmp_path, "bitsandbytes", "0.50", files=[(name, "x" * 1000) for name in names])
    gpu_bundle.strip_bitsandbytes(path, "cuda130")
    with zipfile.ZipFile(path) as archive:
        left = [name for name in archive.namelist() if name.endswith(".so")]
        record = archive.read("bitsandbytes-0.50.dist-info/RECORD").decode()
    assert left == [names[0], names[2]]
    assert [name for name in names if name in record] == left
    with pytest.raises(gpu_bundle.BundleError, match="no library for cuda999"):
        gpu_bundle.strip_bitsandbytes(path, "cuda999")


def bundle(folder: Path) -> dict[str, bytes]:
    """A wheel and an asset of three pieces, as `collect` leaves them, in two parts."""
    import zlib

    files = {"data/numbers.bin": bytes(range(256)) * 40, "LICENSE": b"free"}
    listed = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in files.items()
    }
    whole = {**files, "contents.json": json.dumps(listed).encode()}
    (folder / "wheels").mkdir(parents=True)
    wheel(folder / "wheels", "travels")
    for name, data in whole.items():
        for number, start in enumerate(range(0, len(data), 4096)):
            piece = folder / "assets" / "thing-1.0-abc" / f"{name}.piece{number:03d}"
            piece.parent.mkdir(parents=True, exist_ok=True)
            piece.write_bytes(zlib.compress(data[start : start + 4096]))
    gpu_bundle.cut_into_parts(folder, 2)
    return whole


def started(folder: Path, into: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """The start line, and a Python that looks at what it has."""
    look = "import os, travels; print(travels.here, os.environ['WORKSHOP_OFFLINE'], sorted(os.listdir(os.environ['WORKSHOP_CACHE'])) if os.path.isdir(os.environ['WORKSHOP_CACHE']) else [])"
    line = f'eval "$({sys.executable} tools/gpu_bundle.py unpack --folder {folder} --into {into})" && {sys.executable} -c "{look}"'
    return subprocess.run([*before, "bash", "-c", line], cwd=ROOT, capture_output=True, text=True)


def test_the_start_line_without_a_network_part_by_part(tmp_path):
    folder, into = tmp_path / "bundle", tmp_path / "there"
    whole = bundle(folder)
    alone = ["unshare", "-rn"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let a test leave the network (unshare -rn)")
    later = tmp_path / "later"
    (folder / "2").rename(later)
    if not any((folder / "1").rglob("*.whl")):
        later.rename(folder / "2")
        (folder / "1").rename(later)
    first = started(folder, into, *alone)
    assert first.stdout == "1.0 1 []\n", first.stderr
    shutil.rmtree(next(folder.iterdir()))
    later.rename(folder / "3")
    second = started(folder, into, *alone)
    assert second.stdout == "1.0 1 ['thing-1.0-abc']\n", second.stderr
    for name, data in whole.items():
        assert (into / "cache" / "thing-1.0-abc" / name).read_bytes() == data


def test_the_list_of_what_is_there_and_the_wanted_agree_with_the_project():
    there = gpu_bundle.pins(gpu_bundle.HERE_ALREADY.read_text())
    assert {"torch", "transformers", "pytest", "matplotlib"} <= set(there)
    assert not {"ipykernel", "pyzmq", "torchao", "deepspeed"} & set(there)
    ignored = subprocess.run(["git", "check-ignore", "-q", ".gpu_bundle/x"], cwd=ROOT)
    assert ignored.returncode == 0


def test_a_copy_of_the_tree_takes_what_changed_and_leaves_the_rest(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a.py", "room/b.py", ".hidden/c.py", "room/__pycache__/b.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("1")
    assert gpu_bundle.copy_changed(source, target) == 2
    before = (target / "a.py").stat().st_ino
    (source / "room" / "b.py").write_text("2")
    assert gpu_bundle.copy_changed(source, target) == 1
    assert (target / "a.py").stat().st_ino == before
    assert sorted(str(p.relative_to(target)) for p in target.rglob("*.*")) == ["a.py", "room/b.py"]
    assert (target / "room" / "b.py").read_text() == "2"
    for place, text in ((source, "old"), (target, "measured since")):
        record = place / "data" / "measurements" / "gpu" / "fp8.json"
        record.parent.mkdir(parents=True)
        record.write_text(text)
    assert gpu_bundle.copy_changed(source, target) == 0
    assert record.read_text() == "measured since"
