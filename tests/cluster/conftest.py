"""One Slurm for all tests of this folder, brought up when the first of them asks, gone at the end."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.cluster.slurm import TwoNodes, install


@pytest.fixture(scope="session")
def two_nodes():
    """A real Slurm of two nodes; when it has been taken down, nothing of it may be left.

    Its folder is not pytest's own, which nobody else may enter: munge insists that all may reach its socket.
    """
    install()
    base = Path(tempfile.mkdtemp(prefix="workshop-slurm-"))
    base.chmod(0o755)
    slurm = TwoNodes(base)
    try:
        slurm.start()
        yield slurm
    finally:
        left = slurm.stop()
        shutil.rmtree(base)
    assert left == []


@pytest.fixture
def slurm(two_nodes, monkeypatch):
    """The same, with this process's environment pointing at it; its queue is empty before and after."""
    monkeypatch.setenv("SLURM_CONF", str(two_nodes.configuration))
    monkeypatch.setenv("WORKSHOP_SITE", str(two_nodes.site))
    yield two_nodes
    two_nodes.clear()
