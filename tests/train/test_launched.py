"""The four lines: want, expect, happen, look."""

import subprocess
import sys
from dataclasses import replace

import pytest

from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.run import Adapter, Run
from workshop.predict.memory import predict_memory
from workshop.train import compare, train

# What our GPT and its loop keep: norms written out, fused AdamW, DDP's gradients in buckets that stay.
OURS = replace(implementation("torch"), norm="eager", step_room=0.0)
IN_BUCKETS = replace(OURS, buffers="contiguous")


def wanted(layout, how=OURS, **more):
    return Run(
        "gpt-10m", "this-machine", layout, **{"micro_batch": 2, "seq_len": 128, **more}, implementation=how
    )


@pytest.mark.parametrize(
    ("layout", "how", "within"),
    [
        (Layout(precision="fp32"), OURS, 0.01),
        (Layout(replicate=2, precision="fp32"), IN_BUCKETS, 0.01),
        (Layout(shard=2, zero=3), OURS, 0.10),
    ],
    ids=["one rank", "DDP", "FSDP2 in bf16"],
)
def test_what_is_expected_happens(layout, how, within):
    run = wanted(layout, how)
    expected, measured = predict_memory(run), train(run, num_steps=3)
    found = compare(expected, measured)
    assert found.ratio == pytest.approx(1, abs=within)
    assert found.verdict in repr(found)
    assert found._repr_png_().startswith(b"\x89PNG")
    assert sum(measured.parts.values()) == measured.allocated_bytes
    assert len(measured.ranks) == layout.world_size == measured.worst.world_size
    assert len(measured.losses) == 3
    assert measured.losses[-1] < measured.losses[0]
    if layout.replicate == 2:  # the ring: 2 (n - 1) / n times the gradients' bytes
        sent = sum(row.wire_bytes for row in measured.worst.traffic if row.name == "all_reduce")
        assert sent >= 4 * run.model.num_params
    assert "rank" in str(measured)
    assert "<table" in measured._repr_html_()


def test_a_run_goes_on_in_its_folder(tmp_path):
    run = Run("gpt-1m", "this-machine", Layout(precision="fp32"), micro_batch=1, seq_len=16)
    train(run, folder=tmp_path, num_steps=2, save_every=2, measured=False)
    rest = train(run, folder=tmp_path, num_steps=3, measured=False)
    assert (rest.first_step, len(rest.losses)) == (2, 1)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    with pytest.raises(ValueError, match="nothing was measured"):
        rest.worst  # noqa: B018


def test_what_cannot_be_trained_here_is_refused_before_ranks_start():
    with pytest.raises(ValueError, match="this machine, with 0 GPUs for 8 ranks: say cluster='this-machine'"):
        train(Run("gpt-1m", "8xH100", Layout(shard=8, zero=3)))
    with pytest.raises(ValueError, match=r"an adapter \(lora\): give a run without one.* lesson 51"):
        train(Run("gpt-1m", "this-machine", adapter=Adapter()))
    with pytest.raises(ValueError, match="unknown engine"):
        train(Run("gpt-1m", "this-machine"), engine="magic")


def test_the_notebooks_process_stays_without_torch():
    code = (
        "import sys; from workshop.facts.run import Run; from workshop.facts.layout import Layout; from workshop.train import train, compare; "
        "train(Run('gpt-1m', 'this-machine', Layout(precision='fp32'), seq_len=16), num_steps=1); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "False\n", done.stderr
