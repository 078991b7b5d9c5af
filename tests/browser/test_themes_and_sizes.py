"""The same lesson in a dark theme, at 200 %, in a narrow window, without a mouse, and for who sees no pictures."""

from __future__ import annotations

import pytest

from tests.browser.lab_page import PANEL, LabPage, expect

FIRST_LESSON, SLIDERS = "day0_welcome/00_welcome.ipynb", "try/sliders.ipynb"
LAST = {FIRST_LESSON: "my_share(list(", SLIDERS: "show.parallel_cell(ranks=4)"}
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3, for text of usual size


@pytest.fixture(autouse=True)
def _run(page: LabPage) -> None:
    """Both notebooks have outputs: those of the tests before this file, or new ones."""
    for path, last in LAST.items():
        page.open(path)
        if not page.has_run(last):
            page.run_all(last)


# Of every text that an output of ours shows (errors have JupyterLab's own colours): its colour against the first background behind it that is not transparent.
FAINT = """least => {
  const leftOut = 'svg, style, [data-mime-type^="application/vnd.jupyter."]';
  const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const found = numbers(getComputedStyle(node).backgroundColor);
      if (found.length && found[3] !== 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const panel of document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output')) {
    const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || node.closest(leftOut) || !node.getClientRects().length) continue;
      const pair = [light(numbers(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => a - b);
      const contrast = (pair[1] + 0.05) / (pair[0] + 0.05);
      if (contrast < least) faint.push([walker.currentNode.data.trim().slice(0, 60), contrast.toFixed(1)]);
    }
  }
  return faint;
}"""

# Pictures and controls that reach beyond their output, or are drawn larger than they are.
TOO_WIDE = """() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output')]
  .flatMap(area => [...area.querySelectorAll('img, svg, .widget-inline-hbox, .noUi-target')].map(node => {
    const [inner, outer] = [node.getBoundingClientRect(), area.getBoundingClientRect()];
    const enlarged = node.tagName === 'IMG' && inner.width > node.naturalWidth + 1;
    return inner.width && (inner.right > outer.right + 2 || enlarged)
      ? [node.tagName, node.className.toString(), inner.right, outer.right, node.naturalWidth] : null;
  })).filter(Boolean)"""

PICTURES = """() => [...document.querySelectorAll('.jp-NotebookPanel .jp-OutputArea-output')]
  .flatMap(area => [...area.querySelectorAll('img, svg')]).map(node =>
    [node.tagName, node.getAttribute(node.tagName === 'IMG' ? 'alt' : 'aria-label') || ''])"""


def test_pictures_say_what_they_show(page: LabPage) -> None:
    for path, code in ((FIRST_LESSON, "show.predicted_and_measured"), (SLIDERS, "show.parallel_cell")):
        page.open(path)
        page.output(code).scroll_into_view_if_needed()
        words = page.page.evaluate(PICTURES)
        assert words
        assert [found for found in words if len(found[1]) < 20] == []


def test_a_dark_theme(page: LabPage) -> None:
    assert page.page.evaluate(FAINT, 22) != []  # black on white is 21: what the test looks with, finds
    page.menu("Settings", "Theme", "JupyterLab Dark")
    try:
        expect(page.page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
        for path, code in (
            (FIRST_LESSON, "%%exercise who_am_i"),
            (FIRST_LESSON, "rank 1 has had enough"),
            (SLIDERS, "memory_explorer()"),
        ):
            page.open(path)
            page.output(code).scroll_into_view_if_needed()
            page.shot(f"dark_{path.split('/')[-1]}_{code.split()[0].strip('%')}".replace("()", ""))
            assert page.page.evaluate(FAINT, LEAST_CONTRAST) == []
    finally:
        page.menu("Settings", "Theme", "JupyterLab Light")
        expect(page.page.locator("body")).to_have_attribute("data-jp-theme-light", "true")


def test_twice_as_large_and_a_narrow_window(page: LabPage) -> None:
    """200 % leaves half as many pixels of the page."""
    page.page.keyboard.press("Control+b")  # the file browser aside, as who has a small window puts it
    for name, width, height in (("zoom", 650, 450), ("narrow", 420, 900)):
        page.size(width, height)
        for path, code in ((SLIDERS, "memory_explorer()"), (FIRST_LESSON, "show.predicted_and_measured")):
            page.open(path)
            page.output(code).scroll_into_view_if_needed()
            page.shot(f"{name}_{path.split('/')[-1]}")
            assert page.page.evaluate("innerWidth") == width
            assert page.page.evaluate(TOO_WIDE) == [], name
    page.size(1300, 900)
    page.page.keyboard.press("Control+b")


def test_without_a_mouse(page: LabPage) -> None:
    page.open(SLIDERS)
    keys = page.page.keyboard
    page.page.locator(f"{PANEL} .jp-Notebook").focus()
    keys.press("Escape")
    for _ in range(8):
        keys.press("k")  # up to the first cell
    for key in ("j", "j", "Enter"):
        keys.press(key)
    keys.press("Control+a")
    keys.insert_text("memory_explorer()  # by keys")
    keys.press("Control+Enter")
    page.wait_done("# by keys")
    slider = page.output("# by keys").locator(".noUi-handle").first
    expect(slider).to_be_attached()
    for _ in range(60):
        keys.press("Tab")
        if slider.evaluate("node => node === document.activeElement"):
            break
    else:
        raise AssertionError("sixty times Tab do not reach the first slider of the cell")
    before = page.output("# by keys").locator("img").get_attribute("src")
    keys.press("ArrowRight")
    expect(page.output("# by keys").locator("img")).not_to_have_attribute("src", before or "")
    page.shot("by_keys")
