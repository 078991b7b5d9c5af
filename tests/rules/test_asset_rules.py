"""Every asset has a hash, a version, a licence, a source; the room is light; nothing of them is committed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.assets import assets
from workshop.assets.table import Asset
from workshop.facts.tables import from_table

ROOT = Path(__file__).parents[2]


def problems(asset):
    said = [
        f"no {field}"
        for field in ("what", "used_for", "version", "licence", "source", "fallback")
        if not getattr(asset, field).strip()
    ]
    if not re.fullmatch(r"[0-9a-f]{64}", asset.sha256):
        said.append("no SHA-256")
    if asset.version not in asset.file:
        said.append("the file is of another version")
    if not any("LICEN" in pattern or "copyright" in pattern for pattern in asset.keep):
        said.append("its licence text is not kept")
    return said


@pytest.mark.parametrize("name", assets())
def test_an_asset_is_complete(name):
    assert problems(assets()[name]) == []


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("licence", "", "no licence"),
        ("version", "9", "another version"),
        ("keep", ("*.txt",), "licence text is not kept"),
    ],
)
def test_what_is_missing_is_seen(field, value, said):
    import dataclasses

    assert said in " ".join(problems(dataclasses.replace(assets()["sotu"], **{field: value})))


def test_a_hash_is_64_digits():
    import dataclasses

    for wrong in ("", "abc", "g" * 64):
        with pytest.raises(ValueError, match="asset 'sotu': sha256"):
            dataclasses.replace(assets()["sotu"], sha256=wrong)


def test_an_unknown_key_is_refused():
    entry = {"name": "x", "license": "MIT"}
    with pytest.raises(ValueError, match="license"):
        from_table(Asset, entry, "asset 'x'")


def test_the_room_is_light():
    code = (
        "import sys, workshop.assets, workshop.assets.language_model, workshop.assets.text, workshop.assets.questions\n"
        "print(*{'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""


def test_no_asset_is_committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if listed.returncode:
        pytest.skip("not a git checkout")
    endings = (".safetensors", ".gguf", ".whl", ".deb", ".tgz", ".pth", ".pt", ".gz")
    assert [name for name in listed.stdout.split("\0") if name.endswith(endings)] == []
