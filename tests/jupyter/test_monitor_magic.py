"""`%monitor` and `%%monitor` in a kernel: they show, they end by themselves, they leave nothing behind."""

from __future__ import annotations


def text(cell) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def error(cell) -> str:
    return "".join("\n".join(o.traceback) for o in cell.outputs if o.output_type == "error")


def test_the_live_strips_move_and_end_by_themselves(kernel):
    cells = kernel(
        "import time, threading\nbefore = threading.active_count()\n"
        "from workshop.jupyter.monitor_magic import MonitorMagics",
        "%monitor --seconds 4 --interval 0.1",
        "live = MonitorMagics.live\nfirst = live.image.value\n"
        "while live.image.value in (first, '') and live.monitor.running:\n    time.sleep(0.05)\n"
        "print(live.image.value[:4], live.image.value != first)",
        "while live.monitor.running or threading.active_count() > before:\n    time.sleep(0.05)\n"
        "print(live.words.value[-22:])",
        "%monitor stop",
        "%monitor --seconds 0",
        "%monitor --second 5",
    )
    assert [error(cell) for cell in cells[:5]] == [""] * 5
    assert "application/vnd.jupyter.widget-view+json" in cells[1].outputs[0].data
    assert text(cells[2]) == "<svg True\n"
    assert text(cells[3]) == "The monitor has ended.\n"
    assert "--seconds 0: more than nothing" in error(cells[5])
    assert "Did you mean --seconds" in error(cells[6]) or "more than nothing" not in error(cells[6])


def test_a_cell_is_watched_with_all_its_ranks(kernel, folder):
    cells = kernel(
        "%%monitor --interval 0.1 --log log.jsonl --into watched\n%%torchrun -n 2\nimport time\ntime.sleep(0.5)",
        "print(max(len(s.cpu.processes) for s in watched.samples) >= 4, watched.running)",
        "%%monitor --interval 0.1\nimport time; x = 3; time.sleep(0.3)",
        "print(x)",
        "%%monitor\n1 / 0",
        "%%monitor --into 3\n1",
    )
    assert text(cells[1]) == "True False\n"  # kernel, engine, two ranks
    assert (folder / "log.jsonl").exists()
    assert any("image/svg+xml" in o.get("data", {}) for o in cells[2].outputs)
    assert text(cells[3]) == "3\n"
    assert "ZeroDivisionError" in error(cells[4]) + text(cells[4])
    assert cells[4].outputs[-1].output_type == "error"
    assert "--into 3: a variable's name" in error(cells[5])
