"""A lesson's run on a GPU beside its page: no record, a green one, one that broke."""

import json

import pytest

from benchmarks.gpu.lessons import ON_RANKS
from workshop import show
from workshop.facts.tree import ROOT
from workshop.show.recorded import (
    MACHINE,
    MOST_CELLS,
    TAG,
    _printed,
    _without_comments,
    code_digest,
    recorded_run,
)

LESSON = "00_welcome"
LESSONS = sorted((ROOT / "notebooks").glob("day*/*.ipynb"))
WITHOUT = {  # a letter to a scheduler, and two plans
    "37_plan_the_layout",
    "61_slurm_and_apptainer",
    "64_plan_a_run",
}


@pytest.fixture
def record(tmp_path):
    page = json.loads((ROOT / "notebooks" / "day0_welcome" / f"{LESSON}.ipynb").read_text())
    cells = [c for c in page["cells"] if MACHINE not in c["metadata"].get("tags", ())]
    printed = [c["id"] for c in cells if any(o.get("text") for o in c.get("outputs", []))]
    path = tmp_path / "lessons.json"

    def write(others=0, **part):
        whole = {"status": "done", "seconds": 0.0, **part}
        whole["rows"] = [*whole["rows"], {"what": "a lesson", "measured": 12.3, "others": others}]
        about = {"device": "NVIDIA H200", "date": "2026-12-01", "machine": {"versions": {"torch": "2.11.0"}}}
        path.write_text(json.dumps({**about, "parts": {LESSON: whole}}))
        return path

    return write, printed[0]


def test_without_a_record_one_line_says_so(tmp_path):
    told = recorded_run(LESSON, tmp_path / "none.json")
    assert repr(told) == "On a GPU this lesson has not been run yet: `make gpu` records it."
    assert told._repr_html_().count("<p>") == 1
    assert "has not been run" in recorded_run(LESSON, tmp_path / "none.json", share_gpu=True).sentence
    with pytest.raises(ValueError, match="no lesson '99_nothing'; there are 00_welcome"):
        recorded_run("99_nothing")


def test_a_green_run_stands_beside_the_page_with_device_and_date(record):
    write, cell = record
    path = write(rows=[{"cells": {cell: "4 ranks on a GPU\nx <y>\n" * 20, "gone": "x"}}])
    told = recorded_run(LESSON, path)
    assert told.sentence == (
        "On NVIDIA H200, 2026-12-01, torch 2.11.0: it ran to its end in 12 s; 1 cell printed something else"
        "; 1 of the 2 cells that printed has been rewritten since."
    )
    assert "there:\n  x <y>" in repr(told)
    assert repr(told).count("x <y>") == 12
    assert "x &lt;y&gt;" in told._repr_html_()


def test_of_many_cells_the_sentence_says_how_many_are_shown(record):
    write, _ = record
    page = next(path for path in LESSONS if path.stem == LESSON)
    other = dict.fromkeys(_printed(page)[0], "something else")
    assert len(other) > MOST_CELLS
    told = recorded_run(LESSON, write(rows=[{"cells": other}]))
    assert len(told.cells) == MOST_CELLS
    assert f"{len(other)} cells printed something else, of which the first {MOST_CELLS} are shown" in (
        told.sentence
    )
    few = dict(list(other.items())[:MOST_CELLS])
    assert "are shown" not in recorded_run(LESSON, write(rows=[{"cells": few}])).sentence


def test_ranks_that_did_not_use_the_gpu_are_named(record):
    write, cell = record
    on_cpu, shared = "4 ranks on CPU, gloo (1 GPU here)\nx", "2 ranks share one GPU, gloo\nx"
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: on_cpu, "gone": on_cpu}}])).sentence
    assert "; its ranks ran on that machine's CPU" in told
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: on_cpu, "gone": shared}}])).sentence
    assert "; of 2 cells with ranks, 1 ran them on that machine's CPU" in told
    replicas = "3 replicas of 1 rank on CPU, gloo"
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: on_cpu, "gone": replicas}}])).sentence
    assert "; its ranks ran on that machine's CPU" in told
    picture = "[picture: 16 ranks on 4 nodes]"
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: on_cpu, "gone": picture}}])).sentence
    assert "; its ranks ran on that machine's CPU" in told
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: shared, "gone": "no ranks"}}])).sentence
    assert "CPU" not in told


def test_what_a_cell_tells_of_the_machine_is_no_difference():
    page = next(path for path in LESSONS if path.stem == LESSON)
    (doctor,) = [c for c in json.loads(page.read_text())["cells"] if MACHINE in c["metadata"].get("tags", ())]
    cells, left_out = _printed(page)
    assert doctor["id"] in left_out - set(cells)


def test_lines_that_are_alike_devices_and_warnings_are_no_difference(record):
    write, cell = record
    page = _printed(next(path for path in LESSONS if path.stem == LESSON))[0][cell].printed
    there = f"2 ranks share one GPU, gloo\nconverting smollm2 to bf16, once\n{page}\n/x.py:1: UserWarning: a word\n"
    there += "  return cls(\n[ranks 0-3] /x.py:1: UserWarning: a word\n[ranks 0-3]   return run(\n"
    assert recorded_run(LESSON, write(rows=[{"cells": {cell: there}}])).cells == ()
    ((here, new),) = recorded_run(LESSON, write(rows=[{"cells": {cell: there + "one more"}}])).cells
    assert (here, new) == ("", "one more")


def test_beside_other_lessons_times_are_not_shown(record):
    write, cell = record
    rows = [{"cells": {cell: "a step: 12.5 ms"}}]
    assert recorded_run(LESSON, write(rows=rows)).cells
    told = recorded_run(LESSON, write(others=3, rows=rows))
    assert not told.cells
    assert told.sentence.endswith("beside it, so cells that tell times are not compared.")


def test_a_cell_that_was_rewritten_since_is_not_compared(record):
    write, cell = record
    page = next(path for path in LESSONS if path.stem == LESSON)
    rows = [{"cells": {cell: "another line"}, "sources": {cell: _printed(page)[0][cell].digest}}]
    assert recorded_run(LESSON, write(rows=rows)).cells
    rows[0]["sources"][cell] = code_digest("print('as it was that day')")
    told = recorded_run(LESSON, write(rows=rows))
    assert not told.cells
    assert told.sentence.endswith("12 s; 1 of the 1 cells that printed has been rewritten since.")
    assert code_digest("a = 1  # one\n# two\nb = 2\n") == code_digest("a = 1\nb = 2")
    assert code_digest("a = 1  \nb = 2\n") == code_digest("a = 1\nb = 2") != code_digest("a = 1\nb = 3")


def test_what_an_exercise_or_a_guess_asks_is_no_result(record):
    write, cell = record
    page = json.loads((ROOT / "notebooks" / "day0_welcome" / f"{LESSON}.ipynb").read_text())
    asking = [c["id"] for c in page["cells"] if "".join(c["source"]).startswith(("%%exercise", "%%guess"))]
    assert len(asking) > 1
    assert recorded_run(LESSON, write(rows=[{"cells": dict.fromkeys(asking, "other words")}])).cells == ()
    assert len(recorded_run(LESSON, write(rows=[{"cells": dict.fromkeys([*asking, cell], "x")}])).cells) == 1


def test_a_table_of_another_record_is_no_result():
    page = next(path for path in LESSONS if path.stem == "12_flops_and_mfu")
    cells = json.loads(page.read_text("utf-8"))["cells"]
    tables = {cell["id"] for cell in cells if "show.measured_on_gpu(" in "".join(cell["source"])}
    printed, left_out = _printed(page)
    assert tables
    assert tables <= left_out - set(printed)


def test_a_broken_run_says_why(record):
    write, _ = record
    path = write(status="failed", why="TimeoutError: it had not ended after 150 s", rows=[])
    assert recorded_run(LESSON, path).sentence.endswith(
        "its end: TimeoutError: it had not ended after 150 s."
    )
    cell = "RuntimeError: ly)\n    raise ValueError(1)\n-----\n\nAssertionError: 0.1 is more\n  2 frames on"
    path = write(status="failed", why=cell, rows=[], since="mended, and not run again")
    told = recorded_run(LESSON, path).sentence
    assert told.endswith("its end: AssertionError: 0.1 is more (mended, and not run again).")
    assert "2.11.0, it did not" in told
    path = write(status="failed", why="ValueError: " + "word " * 60, rows=[])
    assert recorded_run(LESSON, path).sentence.endswith("word word ....")


def test_a_run_in_company_says_so(record):
    write, _ = record
    told = recorded_run(LESSON, write(others=10, rows=[{"cells": {}}])).sentence
    assert told.endswith("12 s, with up to 10 other lessons beside it; what it printed was not kept.")


def test_a_part_of_another_day_says_its_own(record):
    write, _ = record
    told = recorded_run(
        LESSON, write(rows=[{"cells": {"gone": "x"}}], date="2026-11-27", torch="2.10.0")
    ).sentence
    assert told.startswith("On NVIDIA H200, 2026-11-27, torch 2.10.0: it ran")


def test_the_cell_that_shows_it_is_no_difference(record):
    write, _ = record
    page = json.loads((ROOT / "notebooks" / "day0_welcome" / f"{LESSON}.ipynb").read_text())
    (own,) = [cell["id"] for cell in page["cells"] if TAG in cell["metadata"].get("tags", ())]
    told = recorded_run(LESSON, write(rows=[{"cells": {own: "On a GPU"}}]))
    assert told.sentence.endswith("it ran to its end in 12 s.")


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_that_trains_or_measures_shows_its_own_run_before_what_to_take_away(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    places = [number for number, cell in enumerate(cells) if TAG in cell["metadata"].get("tags", ())]
    if path.stem in WITHOUT:
        assert not places
        return
    (place,) = places
    on_ranks = path.parent.name.startswith(ON_RANKS)
    wanted = f'show.recorded_run("{path.stem}"{", share_gpu=True" if on_ranks else ""})'
    assert "".join(cells[place]["source"]) == wanted
    assert "".join(cells[place + 1]["source"]).startswith("## What to take away")
    assert "nbval-check-output" not in cells[place]["metadata"]["tags"]  # it changes when a record comes
    assert "".join(cells[place]["outputs"][0]["data"]["text/plain"]).startswith("On ")


def test_who_ran_it_on_another_card_sees_that_run_too(record, tmp_path):
    write, cell = record
    own = json.loads(write(rows=[{"cells": {cell: "on the other"}}]).read_text())
    (tmp_path / "NVIDIA-A100").mkdir()
    (tmp_path / "NVIDIA-A100" / "lessons.json").write_text(json.dumps({**own, "device": "NVIDIA A100"}))
    path = write(rows=[{"cells": {cell: "on the first"}}])
    both = recorded_run(LESSON, path)
    assert both.sentence.count("it ran to its end in 12 s; 1 cell printed something else.") == 2
    assert both.sentence.index("On NVIDIA H200") < both.sentence.index("On NVIDIA A100")
    assert both.cells[0][1] == "on the first"
    other = recorded_run(LESSON, path, device="NVIDIA A100")
    assert other.cells[0][1] == "on the other"
    assert "H200" not in other.sentence
    with pytest.raises(ValueError, match="unknown device 'RTX'.*NVIDIA H200.*NVIDIA A100"):
        recorded_run(LESSON, path, device="RTX")
    path.unlink()
    assert recorded_run(LESSON, path).sentence == other.sentence, "the only card there is"


def test_the_name_is_shows_own():
    assert show.recorded_run is recorded_run


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("x = 1  # one\n# and\ny = 2", "x = 1\ny = 2"),
        (
            "%%torchrun -n 2  # not Python's\n# a rank\nprint('# no')  # yes",
            "%%torchrun -n 2  # not Python's\nprint('# no')",
        ),
        ('a = """\n# in a string\n"""', 'a = """\n# in a string\n"""'),
        ("a = 1\n\n\nb = 2", "a = 1\n\n\nb = 2"),
        ("%%sbatch\n#SBATCH --nodes 2\nsrun true", "%%sbatch\n#SBATCH --nodes 2\nsrun true"),
        ("'''never closed # so not read", "'''never closed # so not read"),
        ("def f():\n    # nothing yet\n    pass", "def f():\n    pass"),
        ("%%guess a\n# What?\n...", "%%guess a\n..."),
    ],
)
def test_comments_go_and_nothing_else(code, plain):
    assert _without_comments(code) == plain


def test_the_setting_of_a_table_is_not_what_it_printed(record):
    write, cell = record
    page = json.loads((ROOT / "notebooks" / "day0_welcome" / f"{LESSON}.ipynb").read_text())
    outputs = next(c for c in page["cells"] if c["id"] == cell)["outputs"]
    printed = "".join("".join(o["text"]) for o in outputs if "text" in o)
    wider = "\n".join("  ".join(line.split(" ")) for line in printed.splitlines())
    told = recorded_run(LESSON, write(rows=[{"cells": {cell: wider}}]))
    assert told.cells == ()
    assert "printed something else" not in told.sentence
