"""Rehearsed bytes against bytes measured on real gloo ranks. The full table: `benchmarks/rehearse.py`."""

from pathlib import Path

import pytest

from benchmarks import rehearse as benchmark
from tests.installed import skip_without
from workshop.rehearse import rehearse

PROGRAMS = Path(__file__).resolve().parent / "programs"


pytestmark = pytest.mark.usefixtures("loaded_engine")  # DeepSpeed, transformers and peft are imported once


@pytest.mark.parametrize(
    "line",
    [
        "2 --layout ddp --recompute",
        "2 --layout ddp-view --accumulate 2 --optimizer sgd",
        "2 --layout zero1",
        "2 --layout fsdp --dtype mixed --steps 3",  # bfloat16 is slow on CPUs without instructions for it
        "2 --layout tp-sp --dtype bf16 --steps 3",
        "2 --layout 1f1b --accumulate 4",
    ],
)
def test_peak_and_every_collective(line):
    for row in benchmark.compare(line):
        assert abs(row.error) < 5e-4, row
        assert row.traffic_agrees, row


@pytest.mark.parametrize("program", ["experts.py", "ring.py"])
def test_programs_with_collectives_of_their_own(program):
    measured = benchmark.run_for_real(PROGRAMS / program, 2, [])
    for rank in range(2):
        played = rehearse(PROGRAMS / program, 2, rank, gloo=True)
        peak = min(measured[rank]["memory"]["step_peaks"][1:])
        assert played.memory.step_peaks[-1] == pytest.approx(peak, rel=5e-4)
        assert [vars(row) for row in played.traffic] == measured[rank]["traffic"]
        assert played.flops == measured[rank]["flops"]


def test_a_router_whose_choice_is_not_known_is_taken_for_balanced_and_said_so():
    own_choice = (PROGRAMS / "experts.py").read_text().replace("EVEN = True", "EVEN = False")
    (line,) = [number for number, row in enumerate(own_choice.splitlines(), 1) if "bincount(" in row]
    played = rehearse(own_choice, 2, gloo=True)
    assert f"values were counted (bincount): a balanced router was assumed (line {line})" in played.notes


def test_lora_by_peft_on_transformers():
    skip_without("peft")
    measured = benchmark.run_for_real(PROGRAMS / "lora.py", 2, [])
    played = rehearse(PROGRAMS / "lora.py", 2, gloo=True)
    assert played.memory.step_peaks[-1] == pytest.approx(measured[0]["memory"]["step_peaks"][-1], rel=5e-4)
    assert [vars(row) for row in played.traffic] == measured[0]["traffic"]


def test_interleaved_pipeline_asks_its_first_stage():
    measured = benchmark.run_for_real(PROGRAMS / "interleaved.py", 2, [])
    played = rehearse(PROGRAMS / "interleaved.py", 2, rank=1, gloo=True)
    # Its four losses are four numbers, each in a storage as large as the micro-batch it was computed from.
    assert played.memory.step_peaks[-1] == pytest.approx(measured[1]["memory"]["step_peaks"][-1], rel=5e-4)
    assert [vars(row) for row in played.traffic] == measured[1]["traffic"]
    assert any("first stage" in note for note in played.notes)


@pytest.mark.parametrize("stage", [1, 3])
def test_deepspeed_on_real_tensors_in_a_fake_world(stage):
    skip_without("deepspeed")
    for row in benchmark.compare(f"2 --layout deepspeed{stage} --dtype bf16 --steps 3"):
        assert abs(row.error) < 5e-4, row
        assert row.traffic_agrees, row
