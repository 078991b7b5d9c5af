"""JupyterLab's page as a learner sees it: open, write, run, read. Everything waits for what must come."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.installed import skip_without

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
else:  # only the worker that runs these tests imports it
    Locator = Page = Any
    skip_without("playwright")

PATIENCE_MS = 90_000.0  # far beyond what anything here takes, and within a test's own limit
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
RUN = re.compile(r"\[\d+\]")


def expect(what: Locator) -> Any:
    """Playwright's own, which looks again until it is so, with our patience."""
    from playwright import sync_api

    sync_api.expect.set_options(timeout=PATIENCE_MS)
    return sync_api.expect(what)


class LabPage:
    """The one page of the browser tests, with its notebooks in tabs.

    artefacts: the folder of the screenshots. address: what `workshop lab` printed.
    """

    def __init__(self, page: Page, artefacts: Path, address: str, folder: Path):
        self.page = page
        self.artefacts = artefacts
        self.address = address
        self.folder = folder
        self.visited = False
        page.set_default_timeout(PATIENCE_MS)
        self.size(1300, 900)

    def size(self, width: int, height: int) -> None:
        """The window's size, in pixels of the page."""
        self.page.set_viewport_size({"width": width, "height": height})

    def shot(self, name: str) -> None:
        """Keep what is seen."""
        self.page.screenshot(path=self.artefacts / f"{name}.png")

    # ------------------------------------------------------------------------------------- notebooks

    def visit(self) -> None:
        """Go to the address that was printed; kept is how long it took until a cell can be run."""
        began = time.monotonic()
        self.page.goto(self.address)
        self.visited = True
        self.wait_ready()
        seconds = time.monotonic() - began
        (self.artefacts / "seconds_to_ready.txt").write_text(f"{seconds:.1f}\n")

    def wait_ready(self) -> None:
        """A cell can be run: the notebook is there and its kernel has nothing to do."""
        expect(self.page.locator(f"{PANEL} .jp-Cell").first).to_be_attached()
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("| Idle")

    def open(self, path: str) -> None:
        """Open a notebook of the lab's folder, or show it where it is open already."""
        name = path.rsplit("/", 1)[-1]
        if not self.visited:
            self.visit()
        if self.page.locator(
            "#jp-main-dock-panel .lm-DockPanel-tabBar .lm-TabBar-tab", has_text=name
        ).count():
            self.open_tab(name)
        else:
            self.menu("File", "Open from Path…")
            self.page.locator(".jp-Dialog input").fill(path)
            self.page.locator(".jp-Dialog .jp-mod-accept").click()
            expect(self.current_tab()).to_contain_text(name)
        self.wait_ready()

    def run_all(self, last: str) -> None:
        """Run every cell, the last of which holds this text."""
        self.menu("Run", "Run All Cells")
        self.wait_done(last)

    def has_run(self, holding: str) -> bool:
        """Whether the cell has a number."""
        return bool(RUN.search(self.cell(holding).locator(".jp-InputPrompt").inner_text()))

    def open_tab(self, name: str) -> None:
        """Show a notebook that is open, at work or not."""
        self.page.locator("#jp-main-dock-panel .lm-DockPanel-tabBar .lm-TabBar-tab", has_text=name).click()
        expect(self.current_tab()).to_contain_text(name)

    def current_tab(self) -> Locator:
        """The tab of the notebook that is shown."""
        return self.page.locator("#jp-main-dock-panel .lm-DockPanel-tabBar .lm-TabBar-tab.lm-mod-current")

    def menu(self, *labels: str) -> None:
        """Choose from the menus by their labels."""
        first, *others = labels
        self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{first}$")).click()
        for label in others:
            self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(label)}$")).last.click()

    def saved(self) -> list[dict[str, Any]]:
        """Save the notebook; the cells of the file."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        tab = self.current_tab()
        expect(tab).not_to_have_class(re.compile("jp-mod-dirty"))
        name = tab.inner_text().strip()
        (path,) = self.folder.rglob(name)
        return json.loads(path.read_text(encoding="utf-8"))["cells"]

    # ----------------------------------------------------------------------------------------- cells

    def cell(self, holding: str | int) -> Locator:
        """The cell whose code holds this text, or the one of that number."""
        cells = self.page.locator(f"{PANEL} .jp-Notebook .jp-Cell")
        if isinstance(holding, int):
            return cells.nth(holding)
        code = self.page.locator(".jp-InputArea-editor", has_text=holding)
        return cells.filter(has=code).first

    def output(self, holding: str | int) -> Locator:
        """What stands below that cell."""
        return self.cell(holding).locator(".jp-OutputArea").first

    def write(self, holding: str, source: str) -> None:
        """Put other code in a cell."""
        cell = self.cell(holding)
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(source)

    def start(self, holding: str) -> None:
        """Run a cell and do not wait for its end."""
        cell = self.cell(holding)
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def run(self, holding: str) -> Locator:
        """Run a cell to its end; what it shows. A kernel that was just connected may drop the first press."""
        prompt = self.cell(holding).locator(".jp-InputPrompt")
        self.start(holding)
        for _ in range(100):
            if "[ ]" not in prompt.inner_text():
                break
            self.page.wait_for_timeout(100)
        else:
            self.start(holding)
        self.wait_done(holding)
        return self.output(holding)

    def wait_done(self, holding: str) -> None:
        """The cell has its number."""
        cell = self.cell(holding)
        expect(cell.locator(".jp-InputPrompt")).to_have_text(RUN)
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("| Idle")

    def toolbar(self, command: str) -> None:
        """Press a button above the notebook."""
        self.page.locator(f"{PANEL} .jp-Toolbar [data-command='{command}']").click()
