"""Parallel cells on the page: read while they run, stop, fail, two notebooks at once, restart."""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.lab_page import LabPage, expect
from tests.waiting import wait_until

RANKS, SECOND, FIRST_LESSON = "try/ranks.ipynb", "try/second.ipynb", "day0_welcome/00_welcome.ipynb"


def let_go(page: LabPage, name: str) -> None:
    (page.folder / "try" / name).touch()


def test_output_is_read_while_it_grows(page: LabPage) -> None:
    page.open(RANKS)
    page.run("%load_ext workshop")
    page.start("both are here")
    shown = page.output("both are here")
    expect(shown).to_contain_text("[ranks 0-1] both are here")
    expect(shown).to_contain_text("[rank 0] rank 0 in step 0")
    expect(page.cell("both are here").locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\*\]"))
    in_sight = shown.locator(".widget-tab-contents > :not(.lm-mod-hidden)")
    shown.locator(".lm-TabBar-tab", has_text="rank 1").click()
    expect(in_sight).to_have_text(re.compile(r"\[rank 1\] both are here\s+\[rank 1\] rank 1 in step 0$"))
    let_go(page, "go1")
    expect(in_sight).to_contain_text("[rank 1] rank 1 in step 1")  # it is still this tab
    shown.locator(".lm-TabBar-tab", has_text="all ranks").click()
    expect(in_sight).to_contain_text("slowest [rank 0] rank 0 in step 0; newest [rank 1] both have come")
    page.shot("tabs")
    let_go(page, "go0")
    page.wait_done("both are here")
    expect(shown).to_contain_text("[ranks 0-1] both have come")
    expect(shown.locator(".lm-TabBar")).to_have_count(0)


def test_afterwards_a_rank_is_read_alone(page: LabPage) -> None:
    page.open(RANKS)
    shown = page.output("both are here")
    alone = shown.locator("details details", has_text="rank 1 in step 1").last
    expect(alone.locator("pre")).not_to_be_visible()
    shown.locator("summary").first.click()
    alone.locator("summary").click()
    expect(alone.locator("pre")).to_be_visible()
    expect(alone).not_to_contain_text("rank 0")
    page.shot("leaves")
    saved = next(cell for cell in page.saved() if "both are here" in "".join(cell["source"]))
    assert "".join(saved["outputs"][0]["data"]["text/plain"]) == "2 ranks on CPU, gloo"
    assert "widget" not in str(saved["outputs"])  # a page without a kernel would show an error there


def test_stop_says_where_ranks_were_and_keeps_their_variables(page: LabPage) -> None:
    page.open(RANKS)
    page.start("dist.recv")
    expect(page.output("dist.recv")).to_contain_text("[rank 0] left the branch")
    page.toolbar("notebook:interrupt-kernel")
    said = page.output("dist.recv")
    expect(said).to_contain_text("rank 1 waits in recv at line 4")
    expect(said).to_contain_text("their variables are kept")
    page.shot("stopped")
    expect(page.run('print("kept", kept)')).to_contain_text("[rank 1] kept 41")


def test_a_failure_names_its_line(page: LabPage) -> None:
    page.open(RANKS)
    said = page.run("rank 1 has had enough")
    expect(said).to_contain_text("rank 1 raised ValueError first, line 4")
    marked = "[...node.querySelectorAll('.cm-line')].map(line => getComputedStyle(line).boxShadow != 'none')"
    lines = page.cell("rank 1 has had enough").evaluate(f"node => {marked}")
    assert [number for number, mark in enumerate(lines, 1) if mark] == [4]
    page.size(1300, 300)  # so little that the line is out of sight when the end of the output is in it
    link = said.get_by_role("link", name="Go to line 4 of the cell")
    line = page.cell("rank 1 has had enough").locator(".cm-line").nth(3)
    said.locator("pre", has_text="RankFailed").evaluate("node => node.scrollIntoView()")
    expect(line).not_to_be_in_viewport()
    link.evaluate("node => node.click()")
    expect(line).to_be_in_viewport()
    page.size(1300, 900)


def test_two_notebooks_at_once(page: LabPage) -> None:
    page.open(RANKS)
    page.start("waited for the other notebook")
    page.open(SECOND)
    page.run("%load_ext workshop")
    expect(page.run("the second notebook")).to_contain_text("[rank 1] the second notebook, rank 1")
    page.open_tab("ranks.ipynb")
    expect(page.cell("waited for").locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\*\]"))
    let_go(page, "later")
    page.wait_done("waited for")
    expect(page.output("waited for")).to_contain_text("[ranks 0-1] waited for the other notebook")


def test_a_restart_in_a_hang_leaves_no_rank(page: LabPage) -> None:
    page.open(RANKS)
    text = page.run('print("process"').inner_text()
    ranks = [Path("/proc") / number for number in re.findall(r"process (\d+)", text)]
    assert len(ranks) == 2
    assert all(rank.exists() for rank in ranks)
    page.start("dist.recv")
    expect(page.cell("dist.recv").locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\*\]"))
    page.toolbar("notebook:restart-kernel")
    page.page.locator(".jp-Dialog .jp-mod-accept").click()
    wait_until(lambda: not any(rank.exists() for rank in ranks))
    page.wait_ready()
    page.run("%load_ext workshop")
    expect(page.cell("%load_ext").locator(".jp-InputPrompt")).to_have_text("[1]:")
    said = page.folder.with_name("said").read_text()  # by the server, in the terminal where it was started
    assert "Traceback" not in said
