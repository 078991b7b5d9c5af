"""One Slurm and one Grid Engine for all tests of this folder, brought up when the first of them asks, gone at the end."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.cluster import grid_engine as engine
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


@pytest.fixture(scope="session")
def two_execution_hosts():
    """A real Grid Engine of two execution hosts; its folder is not pytest's own, so that its jobs may enter it."""
    engine.install()
    base = Path(tempfile.mkdtemp(prefix="workshop-sge-"))
    base.chmod(0o755)
    cell = engine.TwoExecutionHosts(base)
    try:
        cell.start()
        yield cell
    finally:
        cell.stop()
        shutil.rmtree(base)


@pytest.fixture
def grid_engine(two_execution_hosts, monkeypatch):
    """The same, with this process's environment pointing at it; its queue is empty before and after."""
    for name, value in two_execution_hosts.variables().items():
        monkeypatch.setenv(name, value)
    yield two_execution_hosts
    two_execution_hosts.clear()
