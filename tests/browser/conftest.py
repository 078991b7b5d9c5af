"""One JupyterLab, as `make lab` starts it, and one Chromium, for all tests of this folder.

What is seen is kept in ``build/browser``: a picture for each step, and one of where a test failed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.browser import notebooks
from tests.waiting import wait_until
from workshop.cli.server import free_port
from workshop.launch.processes import die_with_parent

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / "build" / "browser"
# The first two for a container, where Chromium has neither its sandbox nor a GPU; the rest keep it at home.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="package")
def chromium() -> str:
    """Debian's Chromium; Playwright's own, which it would download, is not used."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("there is no Chromium here; tools/cluster_packages.py installs Debian's, as root")
    return found


@pytest.fixture(scope="package")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real `workshop lab`: the address that it prints, and its folder. It has settings of its own."""
    home = tmp_path_factory.mktemp("browser")
    folder, said = home / "lab", home / "said"
    own = {
        name: str(home / name.lower())
        for name in ("WORKSHOP_HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    }
    for variable in ("SETTINGS", "WORKSPACES"):
        own[f"JUPYTERLAB_{variable}_DIR"] = str(home / variable.lower())
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NBVAL")}
    words = [
        "lab",
        "--no-browser",
        "--dir",
        str(folder),
        "--port",
        str(free_port(21000 + os.getpid() % 9000)),
    ]
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "workshop", *words],
            cwd=ROOT,
            env=kept | own,
            stdout=file,
            stderr=file,
            preexec_fn=die_with_parent,
        )
    try:
        wait_until(lambda: process.poll() is not None or re.search(r"http://\S+", said.read_text()))
        found = re.search(r"http://\S+", said.read_text())
        assert found, said.read_text()
        for name, cells in notebooks.ALL.items():
            (folder / "try").mkdir(exist_ok=True)
            nbformat.write(notebooks.notebook(cells), folder / "try" / name)
        yield found[0], folder
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


@pytest.fixture(scope="package")
def page(chromium: str, lab: tuple[str, Path]) -> Iterator[object]:
    """The learner's page."""
    from playwright.sync_api import sync_playwright

    from tests.browser.lab_page import LabPage

    address, folder = lab
    shutil.rmtree(ARTEFACTS, ignore_errors=True)
    ARTEFACTS.mkdir(parents=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        shown = LabPage(browser.new_page(), ARTEFACTS, address, folder)
        yield shown
        browser.close()


@pytest.fixture(autouse=True)
def _seen(page: object, request: pytest.FixtureRequest) -> Iterator[None]:
    """A picture of where a test ends, whatever its end."""
    yield
    page.shot(request.node.name)
