"""Times of a server, held to published figures and to the arithmetic one can do by hand."""

from __future__ import annotations

import pytest

from tests.crossed import modules_crossed
from workshop.facts.device import ClusterSpec, DeviceSpec
from workshop.facts.layout import Layout
from workshop.facts.run import Run
from workshop.predict.serving import (
    Engine,
    Serving,
    case,
    engines,
    forward,
    predict_serving,
    ridge_batch,
    throughput_by_batch,
    wire_bytes_per_token,
)


def served(model="llama-2-7b", device="A100-80GB", tensor=1, **changes):
    layout = Layout(tensor=tensor, **changes.pop("layout", {}))
    ranks = layout.world_size
    return Serving(Run(model, f"{ranks}x{device}", layout, micro_batch=1, seq_len=8192), **changes)


GPT_FAST = [
    ("bf16", 1, 104.9), ("int8", 1, 155.58), ("int4-32", 1, 196.80),
    ("bf16", 2, 168.84), ("bf16", 4, 254.02), ("bf16", 8, 328.43),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "tensor", "measured"), GPT_FAST)
def test_gpt_fasts_table(weights, tensor, measured):
    wanted = served(tensor=tensor, weights=weights, quantized_head=True)
    found = predict_serving(wanted, 5, 200, engine="gpt-fast")
    assert found.tokens_per_second == pytest.approx(measured, rel=0.03)
    assert found.interval("tokens_per_second").holds(measured)


def test_13b_on_an_h100_lies_in_the_interval():
    # llama.cpp on an H100 PCIe: github XiongjieDai/GPU-Benchmarks-on-LLM-Inference, LLaMA 2, Dec 2023.
    for weights, measured in (("bf16", 50.99), ("q4_0", 90.26)):
        found = predict_serving(
            served("llama-2-13b", "H100-PCIe", weights=weights), 1, 1024, engine="llama.cpp"
        )
        assert found.tokens_per_second == pytest.approx(measured, rel=0.25)
        assert found.interval("tokens_per_second").holds(measured)


def test_one_token_reads_the_weights_once_and_a_batch_reads_them_no_more_often():
    facts = case(served(), "gpt-fast")
    one, many = forward(facts, 1, 1, 0), forward(facts, 32, 1, 0)
    weights = 2 * (6_738_415_616 - 32_000 * 4096)  # all but the embedding table, and the norms
    assert one.memory == pytest.approx(weights / (0.85 * 2e12), rel=1e-3)
    assert many.memory == one.memory
    assert many.attention == pytest.approx(32 * one.attention)
    assert one.limit == "memory"


def test_a_prompt_computes():
    prompt = forward(case(served(), "gpt-fast"), 1, 2048, 0)
    assert prompt.limit == "arithmetic"
    assert prompt.seconds > 2 * 6.6e9 * 2048 / 312e12  # no faster than the sheet's peak


def test_the_ridge_is_peak_over_bandwidth():
    wanted = served()
    facts = case(wanted, "vllm")
    assert ridge_batch(wanted) == pytest.approx(facts.peak / facts.bandwidth)
    assert ridge_batch(served(device="H100", weights="fp8")) < ridge_batch(served(device="H100"))


def test_more_requests_give_more_tokens_and_each_waits_longer():
    found = throughput_by_batch(served(), 128, 128, [1, 4, 16, 64])
    speeds, waits = [f.tokens_per_second for f in found], [f.time_between_tokens for f in found]
    assert speeds == sorted(speeds)
    assert waits == sorted(waits)
    assert speeds[-1] > 20 * speeds[0]
    assert all(f.between_tokens_loaded >= f.time_between_tokens for f in found)


def test_experts_that_nobody_chose_are_not_read():
    facts = case(served("mixtral-8x7b", tensor=2), "gpt-fast")
    one, all_of_them = forward(facts, 1, 1, 0).memory, forward(facts, 256, 1, 0).memory
    assert 3 < all_of_them / one < 4  # 2 of 8 experts beside the attention
    assert forward(facts, 2, 1, 0).memory < 2 * one


def test_more_ranks_talk_more_and_replicas_multiply():
    alone, two = (predict_serving(served(tensor=t), 64, 64) for t in (1, 2))
    assert alone.decode.communication == 0 < two.decode.communication
    assert two.time_between_tokens > alone.time_between_tokens / 2
    copies = predict_serving(served(layout={"replicate": 4}), 64, 64)
    assert copies.tokens_per_second == pytest.approx(4 * alone.tokens_per_second)


def test_bytes_a_token_over_the_wire():
    assert wire_bytes_per_token(served()) == 0
    assert wire_bytes_per_token(served(tensor=2)) == 2 * 32 * 4096 * 2  # two ranks send each row once
    assert wire_bytes_per_token(served(tensor=8)) == 2 * 32 * 2 * 7 / 8 * 4096 * 2


def test_chunks_wait_for_each_other():
    whole = predict_serving(served(), 4096, 16)
    cut = predict_serving(served(batched_tokens=512), 4096, 16)
    assert cut.time_to_first_token > whole.time_to_first_token
    assert cut.time_to_first_token < 2 * whole.time_to_first_token


def test_a_host_that_launches_each_kernel_is_what_one_waits_for():
    found = predict_serving(served(), 64, 64, engine="transformers")
    assert found.decode.limit == "host"
    assert 20 < found.tokens_per_second < 45  # github h2oai/h2ogpt perf.md: 31.0 on an A100


def test_a_device_of_ones_own():
    mine = DeviceSpec("mine", 16 * 10**9, 30e9, {"fp32": 1e11}, {"fp32": 1e11})
    run = Run("smollm2-135m", ClusterSpec("mine", mine, 1), Layout(precision="fp32"), 1, 1024)
    found = predict_serving(Serving(run, "fp32", "fp32"), 16, 16, engine=Engine("by hand"))
    # Measured on the machine itself, its bandwidth is taken as it is.
    read = (
        4 * run.model.num_params + 24 * 4 * 2 * 30 * 3 * 64
    )  # weights; keys and values of 24 tokens and one
    assert found.decode.memory + found.decode.attention == pytest.approx(read / 30e9, rel=0.01)
    assert set(found.doubts) == {"engine", "device"}


def test_a_program_nobody_measured_is_less_sure():
    known, unknown = (predict_serving(served(), 64, 64, engine=name) for name in ("gpt-fast", "sglang"))
    for quantity in ("time_to_first_token", "time_between_tokens", "tokens_per_second"):
        spans = [p.interval(quantity).upper / p.interval(quantity).lower for p in (known, unknown)]
        assert spans[0] < spans[1]
    assert known.doubts == ()
    assert "less sure" in str(unknown)


def test_what_is_not_modelled_is_refused_in_words():
    with pytest.raises(ValueError, match=r"unknown engine 'vlm'; did you mean 'vllm'\? \(known: gpt-fast"):
        predict_serving(served(), 8, 8, engine="vlm")
    with pytest.raises(
        ValueError, match="prompt 8000 \\+ output 1000 = 9000 tokens, and the run's seq_len is"
    ):
        predict_serving(served(), 8000, 1000)
    with pytest.raises(ValueError, match="pipeline = 2: the time of stages"):
        predict_serving(served(layout={"pipeline": 2}), 8, 8)
    with pytest.raises(ValueError, match="A100-80GB has no products in fp8; use weights = 'int8'"):
        predict_serving(served(weights="fp8"), 8, 8)
    with pytest.raises(ValueError, match="unknown weight format 'int5'"):
        predict_serving(served(weights="int5"), 8, 8)
    with pytest.raises(ValueError, match="prompt must be a whole number of at least 1, not 0"):
        predict_serving(served(), 0, 8)
    with pytest.raises(ValueError, match="unknown quantity 'ttft'"):
        predict_serving(served(), 8, 8).interval("ttft")
    with pytest.raises(ValueError, match="no time constants are known for 'TPU-v4'"):
        predict_serving(served(device="TPU-v4"), 8, 8)


def test_every_engine_serves():
    for name in engines():
        assert predict_serving(served(), 32, 32, engine=name).tokens_per_second > 10


def test_a_prediction_crosses_at_most_twelve_modules():
    for wanted in (served(tensor=4), served("mixtral-8x7b", "H100", 2, weights="fp8")):
        predict_serving(wanted, 64, 64)
        crossed = modules_crossed(lambda wanted=wanted: str(predict_serving(wanted, 64, 64)))
        assert "predict/serving/forward.py" in crossed
        assert len(crossed) <= 12, crossed
