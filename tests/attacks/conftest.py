"""A place on a machine with several users: ``/tmp/attack-...``, which all can enter."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.attacks.table import ADA, MALLORY
from workshop.launch.gpus.lease_files import FOLDER


def pytest_collection_modifyitems(items):
    if os.getuid() == 0:
        return
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason="needs root, to be two users"))


class Shared:
    """Folders of ada and of mallory, and one for all (``drop``, with the sticky bit, as /tmp)."""

    def __init__(self, base: Path):
        self.base = base
        self.ada, self.mallory, self.drop, self.open = (base / n for n in ("ada", "mallory", "drop", "open"))
        for folder, owner, mode in (
            (self.ada, ADA, 0o755),
            (self.mallory, MALLORY, 0o755),
            (self.drop, 0, 0o1777),
            (self.open, 0, 0o777),
        ):
            folder.mkdir()
            os.chown(folder, owner, owner)
            folder.chmod(mode)

    def file(self, path: Path, text: str | bytes, owner: int, mode: int = 0o644) -> Path:
        """A file of that user."""
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        os.chown(path, owner, owner)
        path.chmod(mode)
        return path


@pytest.fixture
def shared(monkeypatch):
    base = Path(tempfile.mkdtemp(prefix="attack-", dir="/tmp"))
    base.chmod(0o755)
    monkeypatch.setenv(FOLDER, str(base / "drop"))
    for name in ("WORKSHOP_SITE", "XDG_CONFIG_HOME", "WORKSHOP_TRUSTED_OWNERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(base / "ada"))
    yield Shared(base)
    shutil.rmtree(base)
