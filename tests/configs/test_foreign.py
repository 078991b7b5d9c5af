"""Files of other people: nothing false is said of them, and the verdict is the library's own."""

from __future__ import annotations

import pytest

from tests.configs.foreign_files import FOLDER, TWINS
from tests.configs.library import name_of
from workshop.configs import Overrides, find_mistakes, read_config


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_what_is_told_is_what_is_wrong(twin):
    """The mistakes by key, and no more; what depends on the reader is settled, where the reader is known."""
    told = find_mistakes(twin.path, Overrides(program=twin.program))
    by_kind = {kind: [m.key for m in told if m.kind == kind] for kind in ("stops", "silent", "costly")}
    assert by_kind == {"stops": [*twin.stops], "silent": [*twin.silent], "costly": []}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_who_reads_it_need_not_be_known(twin):
    """Without the reader's name no more is called wrong; the rest is said to depend on it."""
    told = [m.key for m in find_mistakes(twin.path) if m.is_certain]
    assert told == [*twin.stops, *twin.silent] or set(told) <= {*twin.stops, *twin.silent}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_verdict_is_the_librarys(twin, library):
    refused = library[name_of(twin.as_loaded(), twin.reader)]["refused"]
    if (
        twin.name == "accelerate_slurm_fsdp.yaml"
    ):  # has no num_processes, and no --num_processes is given here
        assert "--num_processes" in refused
    else:
        assert bool(refused) == twin.is_refused, refused


def test_every_file_is_a_twin():
    there = {path.name for path in FOLDER.iterdir() if path.suffix in (".json", ".yaml")}
    assert {twin.name for twin in TWINS} <= there
    assert len(TWINS) >= 15


def test_each_is_read(request):
    """Into a run, where the rest is given and it is modelled; else a sentence says why not."""
    runs = 0
    for twin in TWINS:
        overrides = Overrides(
            "llama-3-8b", "H100", seq_len=4096, num_processes=0 if twin.name.endswith("yaml") else 8,
            program=twin.program,
        )  # fmt: skip
        reading = read_config(twin.path, overrides)
        assert (reading.run is None) == bool(reading.lacking or reading.not_modelled)
        full = read_config(twin.path, _with_the_rest(overrides, reading))
        assert (full.run is None) == bool(full.not_modelled), (twin.name, full.lacking)
        runs += full.run is not None
    assert runs > 12


def _with_the_rest(overrides: Overrides, reading) -> Overrides:
    """What the file does not say, told."""
    lacking = " ".join(reading.lacking)
    rest = {
        "micro_batch": 1 if "micro_batch" in lacking else 0,
        "num_processes": 8 if "num_processes" in lacking else overrides.num_processes,
        "precision": "deepspeed-bf16" if "precision" in lacking else "",
    }
    return Overrides(**{**vars(overrides), **rest})
