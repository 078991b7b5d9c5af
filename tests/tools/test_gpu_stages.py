"""What a GPU alone would walk in the stages of `make gpu`, walked on a CPU with the GPU's answers put in its place."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks import gpu_day, train_loop_peers
from benchmarks.gpu import (
    around,
    device,
    fp8,
    kernels,
    lessons,
    memory,
    quantized,
    serving,
    step_profile,
    throughput,
    train_once,
)
from benchmarks.gpu.stage import Stage, row, seconds_of
from workshop.show.recorded import lesson_digest

ROOT = Path(__file__).parents[2]
TOTAL = 141 * 10**9
COMMANDS = [
    line for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines() if line.startswith("setup=")
]


class OnAGpu(Stage):
    """A stage that is told there is a GPU, and computes on the CPU."""

    on_gpu = True


@pytest.fixture
def stage(tmp_path):
    return OnAGpu("thing", tmp_path, "ci", seconds=1000)


class Drawn(Exception):
    """A model's weights would be drawn now, on this device."""


def drawing(*_, **__):
    try:
        raise Drawn(torch.empty(1).device.type)
    except (AssertionError, RuntimeError) as error:  # a build of torch without CUDA, asked for CUDA
        raise Drawn("cuda" if "CUDA" in str(error) or "NVIDIA" in str(error) else str(error)) from None


# -- memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def readings(monkeypatch):
    """The five readings of torch.cuda, and a training that nobody waits for."""
    monkeypatch.setattr(memory, "train_once", lambda **_: None)
    monkeypatch.setattr(memory, "catalogue_name", lambda: "H200")
    said = {
        "get_device_properties": lambda _: SimpleNamespace(total_memory=TOTAL),
        "reset_peak_memory_stats": lambda: None,
        "synchronize": lambda: None,
        "max_memory_allocated": lambda: 5 * 10**9,
        "max_memory_reserved": lambda: 6 * 10**9,
        "mem_get_info": lambda: (TOTAL - 7 * 10**9, TOTAL),
    }
    for name, answer in said.items():
        monkeypatch.setattr(torch.cuda, name, answer)


def test_thirty_configurations_differ_and_reach_four_fifths_of_the_gpu():
    """Two with the same peak, the optimizer's, would be one measurement told twice."""
    from workshop import predict_memory

    asked = memory.configurations("full").values()
    told = [predict_memory(train_once.run_of(one, "1xH200")).allocated for one in asked]
    peaks = sorted(float(max(one)) for one in told)
    assert len(peaks) == 30
    assert all(more > 1.0001 * less for less, more in itertools.pairwise(peaks))
    assert 0.70 < peaks[-1] / 150.1e9 < memory.SHARE


@pytest.mark.parametrize("rehearsed", [4_900_000_000, None])
def test_a_configuration_that_was_measured_has_five_rows(stage, readings, rehearsed):
    name, keywords = next(iter(memory.configurations("full").items()))
    told = row(name, rehearsed, "B rehearsed", reserved=rehearsed and rehearsed + 1)
    rows = memory.measured(stage, name, keywords, {name: told})
    assert [line["measured"] for line in rows] == [5e9, 5e9, 6e9, 6e9, 7e9]
    beside = {line["what"]: line["predicted"] for line in rows}
    workspaces = 2 * 32 * 2**20  # cuBLAS's
    for more, what in enumerate(("allocated", "reserved")):
        assert beside[f"{what}, beside the rehearsal"] == (rehearsed and rehearsed + more + workspaces)
    assert all(isinstance(line["predicted"], float | int | None) for line in rows)


def test_what_this_gpu_cannot_hold_is_left_out(stage, readings):
    name, keywords = next(iter(memory.configurations("full").items()))
    with pytest.raises(memory.NotHere, match="more than 80% of this GPU"):
        memory.measured(stage, name, keywords, {name: row(name, 0.9 * TOTAL, "B rehearsed", reserved=TOTAL)})


def known(size="toy"):
    return {name: row(name, 10**9, "B rehearsed") for name in memory.configurations(size)}


def test_the_errors_are_made_again_when_more_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "rehearsed_before", lambda *_: known())
    monkeypatch.setattr(
        memory, "measured", lambda stage, name, *_: [row("allocated, beside the rehearsal", 100, "B", 101)]
    )
    short = Stage("memory", tmp_path, "toy", seconds=10)  # enough for the errors, and for no configuration
    memory.run(short)
    short.end()
    assert short.record["status"] == "time is up"
    assert short.record["parts"]["errors"]["rows"] == []
    again = Stage("memory", tmp_path, "toy", seconds=1000)
    memory.run(again)
    again.end()
    assert again.record["status"] == "done"
    median = again.record["parts"]["errors"]["rows"][0]
    assert (median["number"], median["measured"]) == (2, pytest.approx(1))


def test_without_time_to_rehearse_nothing_is_measured_and_the_next_start_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "BEFORE", tmp_path / "none.json")
    late = Stage("memory", tmp_path, "toy", seconds=20)
    memory.run(late)
    late.end()
    assert late.record["status"] == "time is up"
    assert late.record["parts"] == {}


def answered(*_, **__):
    return SimpleNamespace(peak_bytes=7, reserved_bytes=9)


def test_a_rehearsal_that_hangs_costs_its_limit_and_what_was_answered_is_kept(monkeypatch):
    limits = []

    def late(*_, timeout_seconds, **__):
        limits.append(timeout_seconds)
        if len(limits) == 1:
            return answered()
        raise memory.RehearsalError("it did not end in time")

    monkeypatch.setattr(memory, "rehearse", late)
    rows = memory.rehearsals(memory.configurations("toy"), workers=1, limit=5.0)
    assert [(line["measured"], line["reserved"]) for line in rows] == [(7, 9), (None, None)]
    assert all(0 < limit <= 5.0 for limit in limits)
    rows = memory.rehearsals(memory.configurations("toy"), workers=1, limit=0.0)
    assert [line["measured"] for line in rows] == [None, None]
    assert len(limits) == 2


def test_rehearsals_are_made_before_and_taken_by_the_same_torch_and_sources_alone(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(memory, "rehearse", answered)
    monkeypatch.setattr(sys, "argv", ["gpu_day", "--rehearse", "--size", "toy", "--folder", str(tmp_path)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert gpu_day.main() == 0
    assert "2 of 2 configurations are rehearsed" in capsys.readouterr().out
    path, chosen = tmp_path / memory.REHEARSED, memory.configurations("toy")
    assert json.loads(path.read_text("utf-8"))["torch"] == torch.__version__.split("+")[0]
    assert {
        name: line["measured"] for name, line in memory.rehearsed_before(path, chosen).items()
    } == dict.fromkeys(chosen, 7)
    name = next(iter(chosen))
    assert name not in memory.rehearsed_before(path, {name: {**chosen[name], "micro_batch": 3}})
    monkeypatch.setattr(
        memory, "rehearsals", lambda missing, *_: [] if not missing else pytest.fail(str(missing))
    )
    monkeypatch.setattr(memory, "measured", lambda *_: [])
    going = Stage("memory", tmp_path, "toy", seconds=1000)
    memory.run(going)
    assert [line["measured"] for line in going.record["parts"]["rehearsals"]["rows"]] == [7, 7]
    for other in ("torch_release", "sources"):
        with monkeypatch.context() as patch:
            patch.setattr(memory, other, lambda: "another")
            assert memory.rehearsed_before(path, chosen) == {}


# -- where weights are drawn -----------------------------------------------------------------------------------


def test_models_are_drawn_where_they_are_to_be(tmp_path, monkeypatch):
    job = SimpleNamespace(model=json.dumps(vars(throughput.TOYS["toy"][0])))
    model = train_loop_peers.fresh_model(job, torch.device("meta"))
    assert {tensor.device.type for tensor in model.parameters()} == {"meta"}
    there = Stage("thing", tmp_path, "ci", seconds=100)
    there.device = torch.device("meta")
    monkeypatch.setattr("workshop.models.from_spec.gpt_of", drawing)
    with pytest.raises(Drawn, match="meta"):
        serving.served(there, 1)
    monkeypatch.setattr("workshop.models.gpt.GPT", drawing)
    with pytest.raises(Drawn, match="meta"):
        quantized.qlora(there, "hand")
    monkeypatch.setattr(train_once, "gpt_of", drawing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(Drawn, match="cuda"):
        train_once.train_once(**memory.configurations("ci").popitem()[1])


# -- the device, and what stands around ------------------------------------------------------------------------


def test_the_device_tells_first_what_others_are_judged_by_and_leaves_the_host_to_the_end():
    def parts(module):
        asked = []
        module.run(SimpleNamespace(part=lambda name, *_, **__: asked.append(name)))
        return asked

    first = parts(device)
    assert first[:5] == ["clocks", "products bf16", "products fp8", "copies", "launches"]
    assert len(first) == 9
    assert parts(around)[-2:] == ["calibrate", "doctor"]


SAID = """\
created: 6/6 workers
[gw0] [  1%] PASSED tests/gpu/test_memory.py::test_a_request[1]
[gw1] [  2%] FAILED tests/gpu/test_models.py::test_wrong
[gw2] [  3%] SKIPPED tests/gpu/test_shared.py::test_two
[gw3] [  4%] RERUN tests/gpu/test_launch.py::test_slow
[gw3] [  4%] PASSED tests/gpu/test_launch.py::test_slow
[gw4] [100%] ERROR tests/gpu/test_time.py::test_with a space
FAILED tests/gpu/test_models.py::test_wrong - assert 1 == 2
"""


@pytest.mark.parametrize("then", ["", "time.sleep(600)"])
def test_what_pytest_said_until_its_limit_counts(then):
    program = f"import time; print({SAID!r}, flush=True); {then}"
    rows = around.counted([sys.executable, "-c", program], limit=5.0, patience=2.0)
    assert {line["what"]: line["measured"] for line in rows[:-1]} == {
        "passed": 2, "failed": 1, "skipped": 1, "error": 1,
    }  # fmt: skip
    words = rows[-1]
    assert words["failed"] == [
        "tests/gpu/test_models.py::test_wrong",
        "tests/gpu/test_time.py::test_with a space",
    ]
    assert words["what"].endswith("more tests would have come" if then else "exit status 0")
    assert "assert 1 == 2" in words["text"]


def test_pytests_own_words_are_counted(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_good(): pass\n\n\ndef test_bad(): assert 1 == 2\n")
    command = [sys.executable, "-m", "pytest", str(tmp_path), "-v", "-n", "1", "-p", "no:cacheprovider"]
    rows = around.counted([*command, "--rootdir", str(tmp_path), "-c", os.devnull], limit=100.0)
    assert {line["what"]: line["measured"] for line in rows[:-1]} == {"passed": 1, "failed": 1}
    assert rows[-1]["what"].endswith("exit status 1")


def test_a_gpu_test_begins_without_the_workspaces_of_the_one_before(monkeypatch):
    from tests.gpu.conftest import empty

    called = []
    for name in ("set_per_process_memory_fraction", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: called.append(name))
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: called.append("workspaces"), raising=False
    )
    empty()
    assert called[1:4] == ["synchronize", "workspaces", "empty_cache"]


def test_a_record_names_no_folder_of_its_machine(stage, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)

    def broken():
        raise ValueError(f"{lessons.ROOT}/workshop/x.py and {tempfile.gettempdir()}/a and {sys.prefix}/bin")

    stage.part("broken", broken)
    kept = stage.path.read_text()
    assert "workshop/x.py and TMPDIR/a and PYTHON/bin" in kept
    assert str(lessons.ROOT) not in kept


# -- training --------------------------------------------------------------------------------------------------


def test_what_decides_is_trained_first_and_all_that_is_compiled_before_the_rest():
    plan = throughput.plan("full")
    assert [one[:2] for one in plan[:12]] == [
        (name, loop)
        for name in ("1.3b", "350m", "125m")
        for loop in ("workshop", "transformers.Trainer", "lightning", "bare")
    ]
    assert sum(throughput.NEEDED[name] for name, *_ in plan[:3]) <= 180
    assert [one[2] for one in plan] == sorted((one[2] for one in plan), reverse=True)
    assert len({*plan}) == len(plan) == 2 * 3 * len(throughput.LOOPS)
    assert all(bf16 for *_, bf16 in plan)


@pytest.mark.parametrize(("gigabytes", "batch"), [(150.1, 24), (84.9, 12)])
def test_the_largest_model_fits_on_an_h100_too(monkeypatch, gigabytes, batch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    card = SimpleNamespace(total_memory=gigabytes * 1e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert throughput.sequences("1.3b", "full") == batch
    assert throughput.sequences("125m", "full") == 32


def test_where_time_is_short_a_smaller_model_has_its_turn_and_then_none(stage, monkeypatch):
    begun = []

    class Waiting:
        def __init__(self, job):
            self.job = job

        def end(self):
            pass

    monkeypatch.setattr(throughput, "Contender", Waiting)
    monkeypatch.setattr(throughput, "one_loop", lambda _, one: begun.append(one.job["model"]["name"]) or [])
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)
    going = OnAGpu("throughput", stage.folder, "full", seconds=throughput.NEEDED["350m"] - 1)
    throughput.run(going)
    assert {*begun} == {"125m"}
    assert going.record["status"] == "time is up"
    begun.clear()
    throughput.run(OnAGpu("throughput", stage.folder / "late", "full", throughput.NEEDED["125m"] - 1))
    assert not begun


def test_a_contender_that_hangs_does_not_take_the_stages_time_and_is_ended(stage, monkeypatch):
    given = []
    contender = throughput.Contender(throughput.job_of(stage, "toy", "bare", False, False))

    def communicate(*_, timeout=None):
        given.append(timeout)
        if timeout:
            raise subprocess.TimeoutExpired("contender", timeout)

    monkeypatch.setattr(contender.child, "communicate", communicate)
    with pytest.raises(subprocess.TimeoutExpired):
        throughput.one_loop(stage, contender)
    assert given == [throughput.SECONDS, None]
    assert contender.child.wait(30) < 0


def test_nothing_of_a_block_is_left_when_the_next_one_begins(monkeypatch):
    class Trainer:
        """As peers' trainers do, it holds itself."""

        def __init__(self):
            self.again = self

    kept = []

    def block(_):
        assert all(trainer() is None for trainer in kept)
        kept.append(weakref.ref(Trainer()))
        return float(len(kept)), 0.0, 0.5

    gc.disable()
    try:
        told = throughput.turns(SimpleNamespace(block=block), lambda: 0.5, torch.device("cpu"))
    finally:
        gc.enable()
    assert told == {"seconds": 2.5, "loss": 0.5, "peak_bytes": 0}
    kept.clear()
    told = throughput.turns(SimpleNamespace(block=block), lambda: 0.5, torch.device("cpu"), blocks=2)
    assert told["seconds"] == 2.0


# -- FP8 -------------------------------------------------------------------------------------------------------


def test_a_product_that_this_build_refuses_leaves_the_target_its_number(stage, monkeypatch):
    def scaled_mm(a, b, left, right, out_dtype, use_fast_accum):
        if left.numel() > 1:
            raise RuntimeError("no kernel scales by rows")
        return a.to(out_dtype) @ b.to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(fp8, "runs_scaled_mm", lambda _: True)
    rows = fp8.products(stage, (32, 32, 64))
    assert [line["what"] for line in rows[:3]] == [
        "bf16", "by tensor, fast accumulation", "by tensor, fast accumulation, times bf16",
    ]  # fmt: skip
    refused = [line for line in rows if line["measured"] is None]
    assert [line["what"] for line in refused] == ["by row", "by row, fast accumulation"]
    assert {line["why"] for line in refused} == {"no kernel scales by rows"}


def test_a_layer_that_this_build_refuses_leaves_the_others_their_numbers(stage, monkeypatch):
    whole = fp8.Fp8Linear.forward

    def forward(layer, x):
        if layer.recipe.scaling == "tensor":
            raise RuntimeError("no kernel for this")
        return whole(layer, x)

    monkeypatch.setattr(fp8.Fp8Linear, "forward", forward)
    rows = fp8.by_hand(stage, (32, 32, 64))
    assert [line["measured"] is None for line in rows] == [False, True, False, False]


def test_the_target_of_fp8_is_for_a_compiled_layer_that_rounds(stage, monkeypatch):
    pytest.importorskip("torchao")
    made = []
    monkeypatch.setattr(
        nn.Sequential, "compile", lambda net, **how: made.append((type(net[0]).__name__, how))
    )
    rows = fp8.torchao_layer(stage, (32, 32, 64), fp8.WANTED)
    assert made[:2] == [("Linear", {"dynamic": False}), ("Float8Linear", {"dynamic": False})]
    assert {line["what"]: line["wanted"] for line in rows if "times" in line["what"]} == {
        "tensorwise, times bf16": fp8.WANTED, "rowwise, times bf16": None,
    }  # fmt: skip
    asked = []
    here = SimpleNamespace(sized=lambda full, *_: full, part=lambda name, *_, **__: asked.append(name))
    fp8.run(here)
    assert asked.index(f"torchao {fp8.LAYERS[-1]}") == len(fp8.LAYERS)  # at once after the products


@pytest.mark.parametrize("through", ["bf16", "by-hand"])
def test_all_around_fp8_by_hand_runs_in_bf16_as_beside_it(tmp_path, monkeypatch, through):
    from workshop.models.gpt import GPT

    forward, seen = GPT.forward, []

    def watched(*args, **kwargs):
        seen.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
        return forward(*args, **kwargs)

    monkeypatch.setattr(GPT, "forward", watched)
    fp8.steps(Stage("thing", tmp_path, "ci", seconds=100), through)
    assert {*seen} == {torch.bfloat16}


# -- kernels and fewer bits ------------------------------------------------------------------------------------


def test_each_shape_of_the_norm_is_compiled_for_itself(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: asked.append(how) or function)
    kernels.norms(Stage("thing", tmp_path, "toy", seconds=100), (16, 64))
    assert asked == [{"dynamic": False}]


def test_attention_is_timed_without_adding_up_gradients(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_, **__: pytest.fail("gradients are added up"))
    rows = kernels.attention(Stage("thing", tmp_path, "ci", seconds=100), 64)
    assert {line["what"] for line in rows if line["measured"]} >= {"math"}
    assert {line["predicted"] for line in rows} == {None}


def test_attentions_kernels_stand_beside_what_the_predictor_has_for_that_card(tmp_path, monkeypatch):
    here = OnAGpu("thing", tmp_path, "ci", seconds=100)
    monkeypatch.setattr(kernels, "catalogue_name", lambda: "H200")
    record = json.loads((gpu_day.RECORDS / "kernels.json").read_text("utf-8"))
    for length in (1024, 4096, 16384):
        for line in record["parts"][f"attention {length}"]["rows"]:
            told = kernels.predicted(here, line["what"], length, 128)
            assert (told is None) == (line["predicted"] is None)
            assert told is None or 0.85 < line["measured"] / told < 1.15, line
    assert kernels.predicted(here, "efficient", 1024, 128) is None
    monkeypatch.setattr(kernels, "catalogue_name", lambda: "RTX-A6000")
    assert kernels.predicted(here, "cudnn", 1024, 128) is None


def test_torchao_packs_four_bits_for_the_kernel_that_torch_has():
    pytest.importorskip("torchao")
    assert quantized.torchao_int4().int4_packing_format.value == "tile_packed_to_4d"


def test_bitsandbytes_layer_draws_no_numbers_and_has_the_weight():
    pytest.importorskip("bitsandbytes")
    plain = nn.Linear(128, 64, bias=False, dtype=torch.bfloat16)
    before = torch.get_rng_state()
    four = quantized.bitsandbytes_nf4(plain.weight.detach())
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.randn(3, 128, dtype=torch.bfloat16)
    with torch.no_grad():
        error = (four(x) - plain(x)).float().norm() / plain(x).float().norm()
    assert error < 0.2


# -- lessons ---------------------------------------------------------------------------------------------------


def test_lessons_that_time_a_gpu_run_alone_and_others_side_by_side(tmp_path, monkeypatch):
    running, most, ended = set(), {}, []
    monkeypatch.setattr(lessons, "AT_ONCE", 4)

    def executed(stage, path, share, name, others=0):
        running.add(name)
        time.sleep(0.05)
        most[name] = len(running)
        running.discard(name)
        ended.append(name)
        if name.startswith("22_") and not share:
            raise RuntimeError("as asked")
        return [row("cells that read otherwise", 0, "cells")]

    monkeypatch.setattr(lessons, "executed", executed)
    going = OnAGpu("lessons", tmp_path, "full", seconds=1000)
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)
    lessons.run(going)
    parts = going.record["parts"]
    assert parts["22_ddp"]["status"] == "failed"
    assert {part["status"] for name, part in parts.items() if name != "22_ddp"} == {"done"}
    assert [*parts][:5] == ended[:5]
    assert all(name.startswith(lessons.ALONE) and most[name] == 1 for name in ended[:5])
    assert 1 < max(most.values()) <= lessons.AT_ONCE
    assert {"25_fsdp", "25_fsdp --share-gpu"} < {*parts}
    ended.clear()
    lessons.run(again := OnAGpu("lessons", tmp_path, "full", seconds=1000))
    assert ended == ["22_ddp"]
    assert again.record["status"] == "running"
    again.record["parts"]["12_flops_and_mfu"]["rows"] = [row("a lesson", 9.0, "s", others=3)]
    again.write()
    ended.clear()
    lessons.run(OnAGpu("lessons", tmp_path, "full", seconds=1000))
    assert ended == ["12_flops_and_mfu", "22_ddp"], "one that times a GPU and ran in company has another turn"
    ran = again.record["parts"]["12_flops_and_mfu"]
    ran["rows"] = [row("a lesson", 400.0, "s", others=3)]
    again.write()
    ended.clear()
    lessons.run(late := OnAGpu("lessons", tmp_path, "full", seconds=500))
    assert "12_flops_and_mfu" not in ended
    assert late.record["parts"]["12_flops_and_mfu"]["rows"] == ran["rows"], "it is kept where time is short"
    assert late.record["status"] == "time is up"

    def died(*_):
        raise KeyboardInterrupt  # what no part catches, as the end of the process

    ran["rows"] = [row("a lesson", 9.0, "s", others=3)]
    again.write()
    monkeypatch.setattr(lessons, "executed", died)
    with pytest.raises(KeyboardInterrupt):
        lessons.run(OnAGpu("lessons", tmp_path, "full", seconds=1000))
    monkeypatch.setattr(lessons, "executed", executed)
    for _ in range(2):
        ended.clear()
        lessons.run(back := OnAGpu("lessons", tmp_path, "full", seconds=1000))
        assert ended == ["22_ddp"], "it is not begun a third time"
        kept = back.record["parts"]["12_flops_and_mfu"]
        assert (kept["status"], kept["rows"]) == ("done", ran["rows"]), "a dead second turn leaves the first"
    (tmp_path / "lessons.json").unlink()
    lessons.run(late := OnAGpu("lessons", tmp_path, "full", seconds=20))
    assert (late.record["status"], late.record["parts"]) == ("time is up", {})


def test_together_all_lessons_run_side_by_side_the_longest_first_and_those_that_time_a_gpu_once_more_alone(
    tmp_path, monkeypatch
):
    begun = []
    by_name = {path.stem: path for path in lessons.notebooks()}
    monkeypatch.setattr(lessons, "notebooks", lambda: [by_name[name] for name in took])
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)
    monkeypatch.setattr(lessons, "AT_ONCE", 1)
    took = {"12_flops_and_mfu": 20.0, "51_adapters": 90.0, "53_quantization": 0.0, "54_distillation": 40.0}

    def executed(stage, path, share, name, others=0):
        begun.append(name)
        in_company = 3 if stage.together else 0
        return [row("a lesson", took[name], "s", others=in_company, code=lesson_digest(path))]

    monkeypatch.setattr(lessons, "executed", executed)
    going = OnAGpu("lessons", tmp_path, "full", seconds=1000)
    old = {"status": "done", "rows": [row("a lesson", 0.0, "s", code="as it was")]}
    for name in ("12_flops_and_mfu", "51_adapters", "54_distillation"):
        going.record["parts"][name] = {**old, "rows": [{**old["rows"][0], "measured": took[name]}]}
    going.together = True
    lessons.run(going)
    assert begun == ["53_quantization", "51_adapters", "54_distillation", "12_flops_and_mfu"]
    going.end()
    assert going.record["status"] == "done in company", "so the next command does not pass over it"
    begun.clear()
    lessons.run(again := OnAGpu("lessons", tmp_path, "full", seconds=1000))
    assert begun == ["12_flops_and_mfu"]
    again.end()
    assert again.record["status"] == "done"


def test_a_lesson_whose_code_has_changed_since_has_another_turn(tmp_path, monkeypatch):
    ended = []
    (path,) = (one for one in lessons.notebooks() if one.stem == "25_fsdp")
    monkeypatch.setattr(lessons, "notebooks", lambda: [path])
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)

    def executed(stage, path, share, name, others=0):
        ended.append(name)
        if share:
            raise RuntimeError("as asked")
        return [row("cells that read otherwise", 0, "cells", code=lesson_digest(path))]

    def run():
        ended.clear()
        lessons.run(going := OnAGpu("lessons", tmp_path, "full", seconds=1000))
        return going

    monkeypatch.setattr(lessons, "executed", executed)
    going = run()
    shared = going.record["parts"]["25_fsdp --share-gpu"]
    shared |= {"status": "done", "rows": [row("cells that read otherwise", 0, "cells", code="as it was")]}
    going.write()
    going = run()
    assert ended == ["25_fsdp --share-gpu"]
    assert going.record["parts"]["25_fsdp --share-gpu"]["status"] == "failed", (
        "the old code's green is none of its"
    )
    going.record["parts"]["25_fsdp --share-gpu"] = shared
    going.write()
    ended.clear()
    lessons.run(late := OnAGpu("lessons", tmp_path, "full", seconds=20))
    assert not ended
    assert late.record["parts"]["25_fsdp --share-gpu"]["rows"] == shared["rows"], "kept until it has its turn"

    def died(*_):
        raise KeyboardInterrupt  # what no part catches, as the end of the process

    monkeypatch.setattr(lessons, "executed", died)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.setattr(lessons, "executed", executed)
    going = run()
    assert going.record["parts"]["25_fsdp"]["status"] == "done", "what was not begun stays"
    assert going.record["parts"]["25_fsdp --share-gpu"]["status"] == "ended us", (
        "the old green is none of its"
    )
    going.record["parts"]["25_fsdp"]["rows"][0]["code"] = "as it was"
    going.write()
    assert run().record["parts"]["25_fsdp"]["rows"][0]["code"] == lesson_digest(path)
    assert ended == ["25_fsdp"], "what ended a process is not tried again by itself"


# -- the plan --------------------------------------------------------------------------------------------------


def test_the_three_commands_fit_into_a_quarter_of_an_hour_and_can_be_said():
    assert len(COMMANDS) == 3
    told = [gpu_day.arguments(shlex.split(line.rpartition("gpu_day ")[2])) for line in COMMANDS]
    assert {name for how in told for name in how.stages} == {*gpu_day.STAGES}
    start_and_journeys = 31 + 4 * 8  # as on 2026-11-27
    assert start_and_journeys + sum(how.within for how in told) <= 15 * 60 - 60
    assert re.search(r"limit of 480 seconds", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert told[0].within + 60 <= 480


def test_what_ci_runs_walks_every_stage_at_toy_sizes():
    told = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    walks = [line for line in told.stdout.splitlines() if "benchmarks.gpu_day --size toy --folder" in line]
    assert len(walks) == 1  # and no stage by name: all of them


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("unpacks", [True, False])
def test_a_bundle_that_does_not_unpack_ends_the_command(tmp_path, line, unpacks):
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$1" in tools/gpu_bundle.py) echo "export TOLD=there"; exit {int(not unpacks)};; esac\n'
        'echo "$TOLD: $*"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode == 0) == unpacks
    assert done.stdout.startswith("there: -m benchmarks.gpu_day ") == unpacks
    assert bool(done.stdout) == unpacks


# -- serving, and times ----------------------------------------------------------------------------------------


def test_a_server_is_told_beside_the_bytes_that_it_must_read(monkeypatch):
    monkeypatch.setattr(serving, "catalogue_name", lambda: "H200")
    alone = serving.seconds_by_bytes(serving.SPEC, 1, 0)
    read = serving.SPEC.num_params - 32000 * 2048  # all but the table of words
    assert alone == pytest.approx(2 * read / 4.8e12)
    more = serving.seconds_by_bytes(serving.SPEC, 128, 288) - alone
    assert more == pytest.approx(128 * 288 * 2 * 24 * 2048 * 2 / 4.8e12)


def test_a_call_is_queued_behind_a_sleep_so_that_no_launch_is_timed(monkeypatch):
    said = []

    class Event:
        def __init__(self, **_):
            pass

        def record(self):
            said.append("event")

        def elapsed_time(self, _):
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: said.append("sleep"))
    assert seconds_of(lambda: said.append("call"), repeats=2, warm=1, device="cuda") == 3e-3
    queued = ["event", "call", "event"]
    assert said == ["call", "synchronize", "sleep", *queued, *queued, "synchronize"]


# -- what a step is made of --------------------------------------------------------------------------------------


def test_kernels_are_added_up_by_what_they_are_for():
    seconds = {
        "nvjet_sm90_tst_256x128_64x4": 0.2,
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": 0.01,
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>>": 0.01,
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80": 0.01,
        "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>": 0.01,
        "triton_poi_fused_mul_silu": 0.04,
        "triton_red_fused__to_copy_add_mean": 0.02,
        "void at::native::cunn_SoftMaxForward<4, float": 0.005,
        "Memset (Device)": 0.001,
    }
    told = step_profile.by_kind(seconds)
    assert [*told] == [
        "products of matrices", "the rest of the layers, compiled", "attention", "the optimizer", "the loss",
        step_profile.REST,
    ]  # fmt: skip
    assert told["the rest of the layers, compiled"] == pytest.approx(0.06)
    assert told["attention"] == pytest.approx(0.03)
    assert sum(told.values()) == pytest.approx(sum(seconds.values()))


def test_operators_of_a_block_are_told_by_the_step_and_named_ranges_are_not_among_them():
    from torch.profiler import record_function

    calls = []

    def block():
        calls.append(1)
        with record_function("Optimizer.step#SGD.step"):
            for _ in range(4):
                torch.randn(256, 256) @ torch.randn(256, 256)
        return 0.0

    seconds = step_profile.kernel_seconds(block, steps=4)
    assert len(calls) == 2
    assert not any("#" in name for name in seconds)
    assert 0 < seconds["aten::mm"] < 0.1
    assert step_profile.by_kind(seconds)["products of matrices"] == seconds["aten::mm"]


def test_a_record_that_is_gone_on_with_keeps_the_day_of_each_part(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.stage.forget_everything", lambda: None)
    first = OnAGpu("thing", tmp_path, "ci", seconds=1000)
    first.part("one", lambda: [row("x", 1.0, "s")])
    first.record |= {"date": "2026-01-01", "commit": "abc", "note": "in company"}
    first.record["parts"]["one"] = {"status": "done", "rows": [row("x", 1.0, "s")], "seconds": 1.0}  # of old
    first.write()
    second = OnAGpu("thing", tmp_path, "ci", seconds=1000)
    second.part("two", lambda: [row("x", 2.0, "s")])
    one, two = (second.record["parts"][name] for name in ("one", "two"))
    assert (one["date"], one["commit"], one["note"]) == ("2026-01-01", "abc", "in company")
    assert two["date"] == second.record["date"] != "2026-01-01"
    assert "note" not in two
