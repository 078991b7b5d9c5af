"""`workshop predict`: text, JSON, exit codes, and words for a wrong file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama-3-8b-64xh100.toml"


def changed(folder: Path, *replacements: tuple[str, str]) -> str:
    text = EXAMPLE.read_text("utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_the_example_reads_well(capsys):
    assert main(["predict", str(EXAMPLE)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("llama-3-8b, 8,030,261,248 parameters, on 64xH100: tensor 2, shard 32\n")
    assert "512 sequences of 8,192 tokens a step (micro-batch 1, 16 a rank)" in said
    needs = r"^fits: stage 0 needs [\d.]+ GiB \([\d.]+ GiB to [\d.]+ GiB in 8 of 10 cases\) of 79\.1 GiB$"
    assert re.search(needs, said, re.MULTILINE)
    assert re.search(r"MFU [\d.]+%", said)
    assert "predicted traffic of one rank in one step" in said


def test_json_says_the_same_in_numbers():
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "predict", str(EXAMPLE), "--json", "--tokens", "15T", "--price", "2"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    memory, step = found["memory"], found["step"]
    parts = sum(sizes[0] for sizes in memory["parts"].values())
    assert parts == pytest.approx(memory["allocated_bytes"][0], abs=10)
    assert memory["allocated_bytes"][0] <= memory["reserved_bytes"][0] <= memory["device_bytes"][0]
    assert sum(step["causes_seconds"].values()) == pytest.approx(step["seconds"])
    assert found["run"]["global_batch"] == 512
    traffic = found["traffic"]
    assert traffic["wire_bytes"] == sum(row["wire_bytes"] for row in traffic["rows"])
    assert traffic["wire_bytes"] == sum(traffic["wire_bytes_by_axis"].values()) > 0
    assert {"tensor", "data"} <= set(traffic["wire_bytes_by_axis"])
    assert found["no_traffic_because"] == ""
    steps = 15e12 / (512 * 8192)
    assert found["training"]["seconds"] == pytest.approx(steps * step["seconds"], rel=1e-6)
    assert found["training"]["money"] == pytest.approx(found["training"]["device_hours"] * 2)


def test_what_does_not_fit_has_exit_code_1(tmp_path, capsys):
    path = changed(tmp_path, ("micro_batch = 1 ", "micro_batch = 16 "), ('recompute = "selective"', ""))
    assert main(["predict", path]) == 1
    assert "does not fit: stage 0 needs" in capsys.readouterr().out


def test_without_rates_there_is_memory_and_a_reason(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "run.toml"
    path.write_text(
        'model = "gpt-1m"\ncluster = "this-machine"\nseq_len = 128\n[layout]\nprecision = "fp32"\n'
    )
    assert main(["predict", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] is None
    assert "no time constants are known for 'cpu'" in found["no_step_because"]
    assert found["memory"]["allocated_bytes"][0] > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'model = "llama-3-8b"',
            'model = "llama-3-8"',
            "unknown model 'llama-3-8'; did you mean 'llama-3-8b'",
        ),
        ("64xH100", "64xH1000", "unknown cluster or device 'H1000'; did you mean 'H100'"),
        (
            "micro_batch",
            "microbatch",
            "unknown key 'microbatch' in run file run.toml; did you mean 'micro_batch'",
        ),
        ("shard =", "shards =", "unknown key 'shards' in run file run.toml: [layout]; did you mean 'shard'"),
        ("global_batch = 512", "global_batch = 500", "the nearest that would do is 480"),
        (
            "tensor = 2",
            "tensor = 3",
            "num_heads = 32 does not divide by tensor = 3; the nearest that would do is",
        ),
        ("zero = 1", "zero = -1", "unknown zero stage -1"),
        ("shard = 32", "shard = -32", "shard must be a whole number of at least 1, not -32"),
        ("shard = 32", "shard = ", "run.toml is not TOML"),
        ("seq_len = 8192", 'seq_len = "8k"', "seq_len must be a whole number of at least 1, not '8k'"),
        (
            "global_batch = 512",
            "global_batch = -512",
            "global_batch must be a whole number, 0 (not given) or more",
        ),
    ],
)
def test_a_wrong_file_is_told_with_what_would_do(tmp_path, capsys, old, new, said):
    assert main(["predict", changed(tmp_path, (old, new))]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.toml"], "there is no file nowhere.toml"),
        ([str(EXAMPLE), "--price", "2"], "--price needs --tokens"),
        ([str(EXAMPLE), "--tokens", "many"], "--tokens 'many' is no count"),
    ],
)
def test_a_wrong_call_has_exit_code_2(capsys, arguments, said):
    assert main(["predict", *arguments]) == 2
    assert said in capsys.readouterr().err
