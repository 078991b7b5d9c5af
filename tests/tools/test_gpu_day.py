"""`make gpu` walked on a CPU at its smallest size: every stage, its limit, its record, and how it goes on."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import gpu_day
from benchmarks.gpu.stage import NotHere, Stage, row
from benchmarks.gpu.table import NAMES, table
from benchmarks.gpu.throughput import LOOPS
from benchmarks.machine import commit
from tests.ports import free_port
from tests.warm_engines import begun
from workshop.show.gpu_records import number

ROOT = Path(__file__).parents[2]
CONTEND = """
import json
import torch
import torch.distributed as dist
from benchmarks.gpu.throughput import LOOPS, TOYS, contend

def wrapped(*_, **__):
    raise AssertionError("one rank is put into DDP, and ours is not")

torch.nn.parallel.DistributedDataParallel.__init__ = wrapped
model, micro_batch = TOYS["toy"]
for loop in LOOPS:
    told = contend({
        "model": {**vars(model)}, "loop": loop, "compile": False, "bf16": True,
        "seq_len": 32, "micro_batch": micro_batch, "steps": 6,
    })
    print(json.dumps({"loop": loop, **told}), flush=True)
dist.destroy_process_group()
"""
pytestmark = pytest.mark.timeout(600)  # the walk of nine processes is in the first test's time
LEFT_OUT = {
    "doctor",
    "calibrate",
    "four ranks on one GPU",
    "gpu tests",
}  # by the smallest size; the rest needs a GPU


class Stages:
    """The module `subprocess`, but each stage after the first is a fork of a Python that has torch."""

    def __init__(self):
        self.started = []

    def __getattr__(self, name):
        return getattr(subprocess, name)

    def Popen(self, command, **options):  # noqa: N802
        self.started.append(command[3])
        if len(self.started) == 1:
            return subprocess.Popen(command, **options)
        return begun(command[1:], options["env"], options)


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The folder of records after one walk, the folder that comes back, the exit code, and what was said."""
    folder = tmp_path_factory.mktemp("gpu")
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(gpu_day, "subprocess", stages := Stages())
        patch.setattr(sys, "argv", ["gpu_day", "--size", "ci", "--folder", str(folder)])
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("OUT", str(out))
        code = gpu_day.main()
    assert stages.started == [*gpu_day.STAGES]
    return folder, out, code, said.getvalue()


def test_every_stage_walks_and_no_part_fails(walked):
    folder, _, code, said = walked
    records = {name: json.loads((folder / f"{name}.json").read_text()) for name in gpu_day.STAGES}
    assert set(records) == set(NAMES)
    failed = {
        f"{name}: {part}": how["why"]
        for name, record in records.items()
        for part, how in record["parts"].items()
        if how["status"] == "failed"
    }
    assert not failed
    assert {record["status"] for record in records.values()} == {"done"}
    assert code == 0, said
    assert all(record["size"] == "ci" and record["device"] == "cpu" for record in records.values())
    ran = [
        part
        for record in records.values()
        for part, how in record["parts"].items()
        if how["status"] == "done"
    ]
    assert len(ran) >= 25
    assert not LEFT_OUT & set(ran)


def test_the_table_has_every_stage_and_the_archive_comes_back(walked, tmp_path):
    folder, out, _, said = walked
    shown = table(folder)
    assert shown in said
    for words in NAMES.values():
        assert words in shown
    gpu_day.take_in(out / gpu_day.ARCHIVE, tmp_path)
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == sorted(f"{name}.json" for name in gpu_day.STAGES)
    assert [path.name for path in (tmp_path / "lessons").iterdir()] == ["onecell.ipynb"]


def test_every_contender_trains_in_bf16_and_those_on_text_end_alike():
    """On a GPU all of them do. Lightning refuses to clip what a fused optimizer steps in mixed precision."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, "-c", CONTEND], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **place, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"loop"')]
    assert [one["loop"] for one in told] == [*LOOPS], done.stderr[-3000:]
    assert all(one["seconds"] > 0 for one in told)
    losses = [one["loss"] for one in told if one["loop"] != "bare"]  # that one learns random words
    assert losses == pytest.approx([losses[0]] * len(losses), rel=0.01)


@pytest.mark.parametrize("name", ["../beside.json", "/outside.json", "folder"])
def test_an_archive_reaches_no_file_but_below_its_folder(tmp_path, name):
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo(name)
        member.type = tarfile.DIRTYPE if name == "folder" else tarfile.REGTYPE
        packed.addfile(member, io.BytesIO())
    with pytest.raises(ValueError, match=f"holds '{name}', which is no file below"):
        gpu_day.take_in(tmp_path / "made.tar.gz", tmp_path / "records")
    assert not (tmp_path / "beside.json").exists()


def test_records_of_another_card_stay_and_this_ones_get_a_folder_of_their_own(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    for card in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        there.mkdir(exist_ok=True)
        (there / "device.json").write_text(json.dumps({"stage": "device", "commit": "01", "device": card}))
        gpu_day.carry_out(there)
        gpu_day.take_in(tmp_path / "out" / gpu_day.ARCHIVE, here)
    assert gpu_day.record_of(here, "device")["device"] == "NVIDIA H200"
    own = gpu_day.folder_for(here, "NVIDIA H100 80GB HBM3")
    assert own == here / "NVIDIA-H100-80GB-HBM3"
    assert gpu_day.record_of(own, "device")["device"] == "NVIDIA H100 80GB HBM3"
    assert gpu_day.folder_for(own, "NVIDIA H100 80GB HBM3") == own
    assert gpu_day.folder_for(tmp_path / "empty", "NVIDIA H200") == tmp_path / "empty"


@pytest.mark.parametrize("said", ["unknown (CalledProcessError)", None, "0123456789"])
def test_a_record_from_a_tree_without_history_gets_this_trees_commit(tmp_path, monkeypatch, said):
    (tmp_path / "there").mkdir()
    parts = {"now": {"commit": said}, "before": {"commit": "9876543210"}}
    there = {"stage": "device", "commit": said, "parts": parts}
    (tmp_path / "there" / "device.json").write_text(json.dumps(there))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    gpu_day.carry_out(tmp_path / "there")
    gpu_day.take_in(tmp_path / "out" / gpu_day.ARCHIVE, tmp_path / "here")
    record = json.loads((tmp_path / "here" / "device.json").read_text())
    known = said if said == "0123456789" else commit()
    parts = {"now": {"commit": known}, "before": {"commit": "9876543210"}}
    assert record == {"stage": "device", "commit": known, "parts": parts}


def test_a_stage_whose_time_is_up_is_ended_recorded_and_goes_on(tmp_path):
    how = argparse.Namespace(folder=tmp_path, size="ci", together=False)
    assert gpu_day.run_stage("serving", how, 0.2) == "time is up"  # it has not even imported torch
    assert json.loads((tmp_path / "serving.json").read_text())["status"] == "time is up"
    assert not gpu_day.is_done(tmp_path, "serving")
    (tmp_path / "serving.json").unlink()
    stage = Stage("thing", tmp_path, "ci", seconds=100)
    calls = []

    def work(name):
        return lambda: calls.append(name) or [row(name, 1.0, "s", 2.0)]

    assert stage.part("first", work("first"))
    assert not stage.part("long", work("long"), needs=1000)
    again = Stage("thing", tmp_path, "ci", seconds=5000)
    assert again.part("first", work("first"))
    assert again.part("long", work("long"), needs=1000)
    again.end()
    assert calls == ["first", "long"]
    again.record["parts"]["hung"] = {"status": "running", "rows": []}  # as a process leaves it that was ended
    again.write()
    last = Stage("thing", tmp_path, "ci", seconds=100)
    assert last.part("hung", work("hung"))
    assert calls == ["first", "long"]
    assert "ended while this part ran" in last.record["parts"]["hung"]["why"]
    del last.record["parts"]["hung"]
    last.end()
    assert json.loads((tmp_path / "thing.json").read_text())["status"] == "done"


def test_a_part_that_fails_is_told_and_the_next_one_runs(tmp_path):
    stage = Stage("thing", tmp_path, "ci", seconds=100)

    def fails():
        raise ZeroDivisionError("nothing to divide by")

    def not_here():
        raise NotHere("no such GPU")

    stage.part("bad", fails)
    stage.part("absent", not_here)
    stage.part("good", lambda: [row("x", float("nan"), "")])
    stage.end()
    record = json.loads((tmp_path / "thing.json").read_text())
    assert record["status"] == "done, with failures"
    assert not gpu_day.is_done(tmp_path, "thing")  # the next start tries what failed once more
    assert {part: said["status"] for part, said in record["parts"].items()} == {
        "bad": "failed", "absent": "left out", "good": "done",
    }  # fmt: skip
    assert "ZeroDivisionError: nothing to divide by" in record["parts"]["bad"]["why"]
    assert record["parts"]["good"]["rows"][0]["measured"] is None
    retried = Stage("thing", tmp_path, "ci", seconds=100)
    retried.part("bad", lambda: [row("x", 1.0, "")])
    retried.end()
    assert json.loads((tmp_path / "thing.json").read_text())["status"] == "done"
    assert gpu_day.is_done(tmp_path, "thing")
    with pytest.raises(ValueError, match="record of size ci on cpu"):
        Stage("thing", tmp_path, "toy", seconds=1)


def faults(folder, monkeypatch, ends):
    """Starts of a stage that end as told, each after one more part; the seconds that each start was given."""
    given = []

    def run_stage(name, how, seconds):
        parts = {f"part {number}": {"status": "ended us"} for number in range(len(given))}
        given.append(seconds)
        ended = ends[len(given) - 1]
        parts |= (
            {}
            if ended == "ended with 1, and nothing begun"
            else {f"part {len(given)}": {"status": "running"}}
        )
        (folder / f"{name}.json").write_text(json.dumps({"status": ended, "parts": parts}))
        return ended

    monkeypatch.setattr(gpu_day, "run_stage", run_stage)
    return given


@pytest.mark.parametrize(
    ("ends", "starts"),
    [
        (["ended with -6", "ran"], 2),
        (["ended with 1"] * 9, 4),  # a GPU that faults in every part
        (["time is up", "ran"], 1),
        (["ran"], 1),
        (["ended with 1, and nothing begun", "ran"], 1),  # it would end so again
    ],
)
def test_a_stage_that_a_fault_of_the_gpu_ended_is_started_again(tmp_path, monkeypatch, ends, starts):
    given = faults(tmp_path, monkeypatch, ends)
    how = argparse.Namespace(folder=tmp_path, size="ci", together=False)
    assert gpu_day.run_on("thing", how, 500.0) == ends[starts - 1]
    assert len(given) == starts
    assert all(480 < seconds <= 500 for seconds in given)


def test_a_stage_with_less_than_a_minute_left_is_not_started_again(tmp_path, monkeypatch):
    given = faults(tmp_path, monkeypatch, ["ended with 1", "ran"])
    gpu_day.run_on("thing", argparse.Namespace(folder=tmp_path, size="ci", together=False), 59.0)
    assert len(given) == 1


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, "s", "-"), (0.0123, "s", "12.3 ms"), (2.5e-6, "s", "2.5 µs"), (4.3e12, "B/s", "4,300 GB/s"),
        (7.9e14, "FLOP/s", "790 TFLOP/s"), (0.51, "", "0.51"), (1.5e9, "B rehearsed", "1.5 GB"),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(value, unit, words):
    assert number(value, unit) == words


def test_without_a_gpu_the_full_size_says_so():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_day"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 1
    assert "make gpu DRY=1" in done.stdout
