"""A fit finds the constants that runs were made with, with honest errors, and says what they do not determine."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from workshop.cli import main
from workshop.predict.time.rates import rates_of, with_calibrated
from workshop.published.calibrate import DETERMINED, as_toml, calibrate
from workshop.published.calibrate_memory import calibrate_memory
from workshop.published.canonical import as_csv
from workshop.published.canonical_reader import record_of
from workshop.published.predicted import Constants, predict_times, predicted_memory
from workshop.published.record import RESERVED, SECONDS, TIMES, Observation
from workshop.published.refit import with_share

TRUE = {"sustained": 0.6, "memory": 0.5, "network": 0.4}


def row(model="llama-3.1-8b", devices=8, data=8, **more):
    cells = {
        "name": f"{model} on {devices}",
        "model": model,
        "seq_len": "4096",
        "micro_batch_sequences": "1",
        "global_batch_sequences": str(2 * data),
        "device": "H100",
        "num_devices": str(devices),
        "tensor": str(devices // data),
        "data": str(data),
        "zero_stage": "3",
        "precision": "fsdp-bf16",
        "recompute": "full",
        "stack": "torchtitan-compile",
        "seconds_per_step": "1",
    }
    return cells | {name: str(value) for name, value in more.items()}


def made(rows, noise=0.0, device="H100", seed=0, **true):
    """Runs as a cluster with these constants would have measured them."""
    records = [record_of(cells) for cells in rows]
    rates = replace(rates_of("H100"), name=device, **{**TRUE, **true})
    observations = [record.observations(TIMES)[0] for record in records]
    seconds = predict_times(observations, Constants({device: rates}, {}))
    seconds = seconds * np.exp(np.random.default_rng(seed).normal(0, noise, len(seconds)))
    return [
        replace(record, quantities=((SECONDS, float(value)),), row=line)
        for line, (record, value) in enumerate(zip(records, seconds, strict=True), start=2)
    ]


SEVERAL = [
    *(row(devices=8 * nodes, data=8 * nodes, micro_batch_sequences=b, global_batch_sequences=8 * nodes * b,
          network_gbps_per_device=100)
      for nodes in (1, 2, 4, 8) for b in (1, 2, 4)),
    *(row("llama-3.2-1b", seq_len=s, recompute=r) for s in (1024, 4096, 16384) for r in ("none", "full")),
    *(row("llama-2-70b", devices=64, data=32, micro_batch_sequences=b, global_batch_sequences=64,
          network_gbps_per_device=100) for b in (1, 2)),
]  # fmt: skip


def test_the_constants_that_made_the_runs_are_found():
    (found,), skipped = calibrate(made(SEVERAL))
    assert not skipped
    for name, true in TRUE.items():
        assert found.values[name][0] == pytest.approx(true, rel=1e-3)
    assert found.errors_after < 1e-3 < found.errors_before
    assert set(found.unknown) == {"sustained_fp8"}


def test_standard_errors_cover_the_truth_under_noise():
    """Fourteen repetitions gave a root mean square of 1.1 to 1.3 standard errors; three are repeated here."""
    distances = []
    for seed in range(100, 103):
        (found,), _ = calibrate(made(SEVERAL, noise=0.02, seed=seed))
        distances += [(value - TRUE[name]) / error for name, (value, error) in found.values.items()]
    assert len(distances) >= 6
    assert np.sqrt(np.mean(np.square(distances))) < 2
    assert np.abs(distances).max() < 3.5


def test_what_the_runs_do_not_determine_is_unknown():
    (one_node,), _ = calibrate(made([cells for cells in SEVERAL if cells["num_devices"] == "8"]))
    assert "network" in one_node.unknown
    assert "say nothing" in one_node.unknown["network"]
    (single,), _ = calibrate(made(SEVERAL[:1]))
    assert single.values == {}
    assert set(single.unknown) == {"sustained", "sustained_fp8", "memory", "network"}
    repeated = made(SEVERAL[:1]) * 9  # the same run nine times is one run
    assert calibrate(repeated)[0][0].values == {}


def test_noise_makes_a_weak_constant_unknown_rather_than_wrong():
    (found,), _ = calibrate(made(SEVERAL[:5], noise=0.3))
    assert all(error <= DETERMINED * value for value, error in found.values.values())
    assert found.unknown


def test_runs_without_a_time_or_that_the_model_lacks_are_not_used():
    lora = record_of(row(adapter="lora", adapter_rank=8, recompute="none"))
    silent = replace(record_of(row()), quantities=())
    found, skipped = calibrate([lora, silent])
    assert found == [] or all(one.runs == 1 for one in found)
    assert len(found) + len(skipped) == 1


def test_a_device_without_constants_needs_a_relative():
    cells = [
        row("llama-3.2-1b", devices=1, data=1, device="MI250X", seq_len=s, recompute=r)
        for s in (512, 1024, 4096, 16384)
        for r in ("none", "full")
    ]
    records = made(cells, device="MI250X")
    found, skipped = calibrate(records)
    assert not found
    assert "'MI250X'" in skipped[0].reason
    assert "--like" in skipped[0].reason
    (fitted,), _ = calibrate(records, like="H100")
    assert fitted.values["sustained"][0] == pytest.approx(0.6, rel=0.05)
    tables = tomllib.loads(as_toml([fitted], 'a "file"\nin two lines.csv'))
    assert tables["device"]["MI250X"]["like"] == "H100"
    assert tables["device"]["MI250X"]["fitted_on"].endswith('a "file"\nin two lines.csv')


def test_what_was_written_is_read_by_every_command(tmp_path):
    runs, written = tmp_path / "mine.csv", tmp_path / "h100.toml"
    runs.write_text(as_csv(made(SEVERAL, noise=0.01)), "utf-8")
    assert main(["calibrate", "--runs", str(runs), "--output", str(written)]) == 0
    assert main(["calibrate", "--runs", str(runs), "--output", str(written)]) == 2  # nothing is overwritten
    tables = tomllib.loads(written.read_text("utf-8"))
    assert set(tables["standard_error"]["H100"]) == set(TRUE)
    assert set(tables["unknown"]["H100"]) == {"sustained_fp8"}
    program = (
        "from workshop.predict.time.rates import rates_of; r = rates_of('H100'); print(r.sustained, r.skew)"
    )
    environment = {**os.environ, "WORKSHOP_RATES": str(written)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    sustained, skew = map(float, done.stdout.split())
    assert sustained == tables["device"]["H100"]["sustained"]
    assert skew == rates_of("H100").skew


@pytest.mark.parametrize("content", [None, "no TOML [", "[other]\n", '[device."X"]\nlike = "H1000"\n'])
def test_a_wrong_file_of_rates_is_refused(tmp_path, monkeypatch, content):
    path = tmp_path / "rates.toml"
    if content is not None:
        path.write_text(content, "utf-8")
    monkeypatch.setenv("WORKSHOP_RATES", str(path))
    with pytest.raises(ValueError, match="WORKSHOP_RATES"):
        with_calibrated({"H100": {}})


def test_exit_code_1_where_nothing_is_determined(tmp_path, capsys):
    runs, written = tmp_path / "mine.csv", tmp_path / "none.toml"
    runs.write_text(as_csv(made(SEVERAL[:1])), "utf-8")
    assert main(["calibrate", "--runs", str(runs), "--output", str(written)]) == 1
    assert not written.exists()
    assert "unknown" in capsys.readouterr().out


def reserving(share, spoiled=0.0):
    """Runs as an allocator that leaves this share idle would have reserved."""
    found = []
    for batch in (1, 2, 3, 4):
        record = record_of(
            row(micro_batch_sequences=batch, global_batch_sequences=8 * batch, recompute="none")
        )
        one = Observation(record, RESERVED)
        value = with_share(one, predicted_memory(record), share) * (1 + spoiled * (-1) ** batch)
        found.append(replace(record, quantities=((RESERVED, value),), row=batch))
    return found


def test_the_idle_share_of_memory_is_found_as_well():
    found, skipped = calibrate_memory(reserving(0.32))
    assert (found.share, found.unknown, skipped) == (pytest.approx(0.32, abs=0.006), "", [])
    assert found.errors_after < 0.003 < found.errors_before
    assert calibrate_memory(reserving(0.3)[:1])[0].unknown.startswith("the runs say nothing")
    assert "standard error" in calibrate_memory(reserving(0.3, spoiled=0.15))[0].unknown
    assert calibrate_memory([record_of(row())]) == (None, [])


def test_a_file_with_the_idle_share_changes_what_is_reserved(tmp_path, capsys):
    runs, own = tmp_path / "mine.csv", tmp_path / "own.toml"
    runs.write_text(as_csv(reserving(0.32)))
    assert main(["calibrate", "--runs", str(runs), "--output", str(own)]) == 0
    assert "idle_share     0.32" in capsys.readouterr().out
    assert tomllib.loads(own.read_text())["memory"]["idle_share"] == pytest.approx(0.32, abs=0.006)
    ask = "from workshop.predict.memory.allocator import idle_share; print(idle_share())"
    told = subprocess.run(
        [sys.executable, "-c", ask],
        env=os.environ | {"WORKSHOP_RATES": str(own)},
        capture_output=True,
        text=True,
    )
    assert float(told.stdout) == pytest.approx(0.32, abs=0.006)
