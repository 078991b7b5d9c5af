"""Attention at the rate that was measured: by device, kernel, pass, length and width of a head."""

from dataclasses import replace

import numpy as np
import pytest

from workshop.facts.catalogue import model
from workshop.facts.layout import Layout
from workshop.facts.microbenchmarks import attention, windowed_attention
from workshop.facts.run import Run
from workshop.facts.stack import software
from workshop.predict.case import NotPredictable, setting_of
from workshop.predict.layouts import Layouts
from workshop.predict.time.attention import KERNELS, MEASURED_ON, Line, attention_rates
from workshop.predict.time.step import predict_step, predict_steps


def test_what_was_measured_is_what_is_predicted():
    """Of the kernel that is taken on each device, at 128 and for every length."""
    for device, places in MEASURED_ON.items():
        known = {row.kernel for row in attention() if row.device in places}
        for asked, names in KERNELS.items():
            taken = next(name for name in names if name in known)
            rates = attention_rates(device, asked)
            for row in attention():
                if row.device in places and (row.kernel, row.head_dim, row.dtype) == (taken, 128, "bf16"):
                    found = float(rates.rate(row.causal, row.pass_, row.seq_len, 128))
                    assert found == pytest.approx(row.tflops * rates.share, rel=1e-6), (device, asked, row)


def test_longer_sequences_are_faster_and_backward_is_slower():
    for device in ("A100-80GB", "H100", "GB200"):
        rates = attention_rates(device, "flash-3")
        short, long = (float(rates.rate(True, "forward", s, 128)) for s in (1024, 8192))
        assert short < 0.95 * long
        assert rates.rate(True, "backward", 8192, 128) < rates.rate(True, "forward", 8192, 128)


def test_generations_differ_where_the_device_has_both():
    second, third = (attention_rates("H100", name) for name in ("flash-2", "flash-3"))
    ratio = float(third.rate(True, "forward", 8192, 128) / second.rate(True, "forward", 8192, 128))
    assert 2 < ratio < 2.6  # 655 against 284
    first = attention_rates("A100-80GB", "flash-1")
    again = attention_rates("A100-80GB", "flash-2")
    assert first.rate(True, "forward", 4096, 128) * 2.5 == pytest.approx(
        again.rate(True, "forward", 4096, 128)
    )
    in_triton = attention_rates("A100-80GB", "flash-triton")
    assert in_triton.rate(True, "backward", 4096, 128) * 1.3 == pytest.approx(
        again.rate(True, "backward", 4096, 128)
    )
    assert attention_rates("A100-80GB", "flash-3") == replace(
        again,
        lines=attention_rates("A100-80GB", "flash-3").lines,
        windows=attention_rates("A100-80GB", "flash-3").windows,
    )


def test_narrow_heads_are_slower_by_what_was_measured():
    rates = attention_rates("GB200", "flash-3")
    served = {
        (r.seq_len, r.head_dim): r.tflops for r in attention() if (r.device, r.kernel) == ("GB200", "serving")
    }
    measured = np.median([served[s, 64] / served[s, 128] for s in (1024, 2048, 4096, 8192)])
    found = rates.rate(True, "forward", 4096, 64) / rates.rate(True, "forward", 4096, 128)
    assert float(found) == pytest.approx(float(measured), rel=0.03)


def test_beyond_the_shortest_length_the_line_goes_on():
    line = Line(np.array([1 / 8192, 1 / 4096]), np.array([1 / 200, 1 / 160]))
    assert float(line.rate(2048)) == pytest.approx(1 / (1 / 160 + 2 * (1 / 160 - 1 / 200)))
    assert float(line.rate(65536)) == pytest.approx(200)


def test_a_device_that_nobody_timed_is_refused():
    with pytest.raises(NotPredictable, match="nobody has timed flash-2 attention on 'V100-32GB'"):
        attention_rates("V100-32GB", "flash-2")


def test_a_window_costs_what_was_measured():
    for device, kernel, bits in (
        ("A100-80GB", "flash-2", 16),
        ("H100", "flash-3", 16),
        ("GB200", "flash-3", 8),
    ):
        rates = attention_rates(device, kernel, bits)
        dtype, places = ("fp8" if bits == 8 else "bf16"), MEASURED_ON[device]
        mine = [row for row in windowed_attention() if row.device in places and row.dtype == dtype]
        assert len(mine) == 10
        for row in mine:
            found = float(rates.windowed_rate(row.window, row.pass_, row.seq_len, row.head_dim))
            assert found == pytest.approx(row.tflops, rel=1e-6), (device, row)


def test_another_window_costs_what_a_mask_costs_that_shows_as_many_keys():
    rates = attention_rates("GB200", "flash-3")
    whole = rates.rate(True, "forward", 8192, 128)
    assert float(rates.windowed_rate(8192, "forward", 8192, 128)) == pytest.approx(float(whole))
    half = rates.rate(True, "forward", 2 * (4096 - 4096**2 / (2 * 65_536)), 128)
    assert float(rates.windowed_rate(4096, "forward", 65_536, 128)) == pytest.approx(float(half))


def seconds_of(spec, seq_len, **stack):
    run = Run(
        spec, "8xGB200", Layout(shard=8, precision="megatron-bf16"), 1, seq_len, implementation="megatron"
    )
    return predict_step(run, replace(software("megatron-bridge"), **stack)).causes["attention"]


def test_a_step_of_a_model_with_windows():
    """Half of gpt-oss's layers cost next to nothing in long sequences, unless the scores are written out."""
    spec = model("gpt-oss-20b")
    whole = spec.resized(attention_window=0, full_attention_every=0)
    assert 0.5 < seconds_of(spec, 16_384) / seconds_of(whole, 16_384) < 0.6
    assert seconds_of(spec, 4096, attention="unfused") == seconds_of(whole, 4096, attention="unfused")
    long, longer = (seconds_of(spec.resized(full_attention_every=0), s) for s in (16_384, 32_768))
    assert longer == pytest.approx(2 * long, rel=0.02)  # a token costs the same at every length
    mistral = model("mistral-7b")
    assert seconds_of(mistral, 4096) == pytest.approx(seconds_of(mistral.resized(attention_window=0), 4096))


def step_of_bloom(heads: int, **choices: object) -> float:
    """Seconds of a step of the search for BLOOM's layout: 78 layers of 13,824 on 384 A100."""
    shape = model("bloom-176b").resized(
        num_layers=78,
        hidden_size=13824,
        ffn_hidden_size=4 * 13824,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=13824 // heads,
    )
    layout = Layout(shard=8, zero=1, tensor=8, pipeline=6, recompute="full", precision="deepspeed-fp16")
    one = Run(shape, "384xA100-80GB", layout, 4, 2048, accumulation=64)
    used = replace(software("megatron-deepspeed-bloom"), **choices)
    return float(predict_steps(setting_of(one, used), Layouts.of_runs([one])).seconds[0])


def test_unfused_heads_that_are_no_multiple_of_eight_wide_run_without_tensor_cores():
    """Measured: 121.28 seconds with 64 heads of 216, 124.75 with 96 of 144, 162.72 with 128 of 108."""
    aligned, more, odd = (step_of_bloom(heads) for heads in (64, 96, 128))
    assert more / aligned == pytest.approx(124.75 / 121.28, abs=0.03)
    assert odd / aligned == pytest.approx(162.72 / 121.28, abs=0.1)


def test_fused_heads_of_any_width_keep_their_rate():
    narrow, odd = (step_of_bloom(heads, attention="flash-2") for heads in (96, 128))
    assert odd == pytest.approx(narrow, rel=0.02)
