"""Bytes of keys and values, and what fits, held to what servers have printed."""

from __future__ import annotations

import pytest

from workshop.facts.catalogue import model
from workshop.facts.layout import Layout
from workshop.facts.run import Adapter, Run
from workshop.predict.serving import Serving, kv_bytes_per_token, kv_capacity


def test_two_vectors_a_head_and_layer():
    assert kv_bytes_per_token(model("llama-2-7b")) == 2 * 32 * 4096 * 2
    assert kv_bytes_per_token(model("llama-2-70b")) == 2 * 80 * 8 * 128 * 2  # 8 of 64 heads
    assert kv_bytes_per_token(model("falcon-7b")) == 2 * 32 * 1 * 64 * 2  # one head
    assert kv_bytes_per_token(model("llama-2-7b"), "fp8") == kv_bytes_per_token(model("llama-2-7b")) / 2
    assert kv_bytes_per_token(model("llama-2-7b"), kv_layers=16) == 2 * 16 * 4096 * 2


def test_a_latent_vector_serves_all_heads():
    # arXiv 2405.04434, section 2.1.4: (4 + 1/2) heads of 128 for each layer.
    assert kv_bytes_per_token(model("deepseek-v2")) == 60 * 4.5 * 128 * 2
    assert kv_bytes_per_token(model("deepseek-v2"), tensor=8) == kv_bytes_per_token(model("deepseek-v2"))


def test_what_sglang_and_vllm_printed_for_qwen3_235b_over_four_ranks():
    # github vllm-project/vllm issue 21348: 367,404 tokens, K and V 8.23 GB each; 178,880 tokens in 8.11 GiB.
    each = kv_bytes_per_token(model("qwen3-235b-a22b"), "bf16", 4)
    assert 367_404 * each / 2**30 == pytest.approx(2 * 8.23, abs=0.02)
    assert int(8.11 * 2**30 / each) == pytest.approx(178_880, rel=0.015)


def test_more_ranks_than_heads_keep_copies():
    two, four, eight = (kv_bytes_per_token(model("qwen3-30b-a3b"), "bf16", t) for t in (2, 4, 8))
    assert (four, eight) == (two / 2, two / 2)


def served(name, cluster, tensor=1, **changes):
    batch, length = changes.pop("batch", 1), changes.pop("length", 2048)
    return Serving(Run(name, cluster, Layout(tensor=tensor), micro_batch=batch, seq_len=length), **changes)


def test_what_vllm_printed_for_70b_in_8_bits_on_one_device():
    # github vllm-project/vllm pull request 12569: w8a8, --max-model-len 2048, share 0.98, weights 67.72 GiB,
    # 1,381 blocks. The difference of our room to it is what it takes beside its weights.
    found = kv_capacity(served("llama-3.1-70b", "H100", weights="int8", memory_share=0.98))
    assert found.weight_bytes / 2**30 == pytest.approx(67.72, rel=0.005)
    assert found.blocks == pytest.approx(1381, rel=0.25)
    assert found.requests(2048) == found.blocks // 128


def test_a_block_more_room_for_more_memory_and_fewer_weights():
    base = served("llama-2-13b", "A100-40GB", memory_share=0.9)
    more = kv_capacity(base.changed(memory_share=0.95))
    # github vllm-project/vllm issue 1018: 10 GB of cache at 0.90 and 12 GB at 0.95, for a model of 13B.
    assert kv_capacity(base).room_bytes == pytest.approx(10e9, rel=0.15)
    assert more.room_bytes == pytest.approx(12e9, rel=0.15)
    assert kv_capacity(base.changed(weights="int8")).tokens > 2 * kv_capacity(base).tokens
    assert kv_capacity(base.changed(kv="fp8")).tokens == pytest.approx(2 * kv_capacity(base).tokens, rel=0.01)
    assert kv_capacity(base.changed(block_size=256)).requests(257) < kv_capacity(base).requests(257)


def test_what_does_not_fit_leaves_no_block():
    found = kv_capacity(served("llama-2-70b", "A100-40GB"))
    assert (found.blocks, found.tokens, found.requests(16)) == (0, 0, 0)
    assert "0 tokens" in str(found)


def test_tensor_ranks_make_room():
    one, four = (kv_capacity(served("llama-3.1-70b", f"{t}xH200", t)) for t in (1, 4))
    assert four.weight_bytes == pytest.approx(one.weight_bytes / 4, rel=0.001)
    assert four.tokens > 4 * one.tokens


def test_a_server_refuses_what_trains():
    run = Run("llama-2-7b", "8xA100-80GB", Layout(shard=8, zero=3, recompute="full"), seq_len=2048)
    with pytest.raises(ValueError, match="a server does not do this:\n- zero = 3, shard = 8.*\n- recompute"):
        Serving(run)
    with pytest.raises(ValueError, match="adapter 'lora': merge it into the weights first"):
        Serving(Run("llama-2-7b", "A100-80GB", adapter=Adapter()))
    with pytest.raises(ValueError, match="bert-base is no decoder"):
        Serving(Run("bert-base", "A100-80GB", seq_len=512))
    with pytest.raises(ValueError, match="trains in few bits; say weights = 'fp8'"):
        Serving(Run("llama-2-7b", "A100-80GB", Layout(precision="megatron-fp8")))
    with pytest.raises(ValueError, match="accumulation = 4: micro_batch says"):
        Serving(Run("llama-2-7b", "A100-80GB", accumulation=4))
    with pytest.raises(ValueError, match="document_len = 64"):
        Serving(Run("llama-2-7b", "A100-80GB", document_len=64))


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="unknown format of the KV cache 'fp9'"):
        served("llama-2-7b", "A100-80GB", kv="fp9")
    with pytest.raises(ValueError, match="memory_share must lie above 0 and be at most 1, not 1.5"):
        served("llama-2-7b", "A100-80GB", memory_share=1.5)
    with pytest.raises(ValueError, match="speculation needs both"):
        served("llama-2-7b", "A100-80GB", draft="smol")
    with pytest.raises(ValueError, match="kv_layers = 33: llama-2-7b has 32 layers"):
        served("llama-2-7b", "A100-80GB", kv_layers=33)
    with pytest.raises(ValueError, match="block_size must be a whole number"):
        served("llama-2-7b", "A100-80GB", block_size=0)
    with pytest.raises(ValueError, match="tokens_each must be a whole number"):
        kv_capacity(served("llama-2-7b", "A100-80GB")).requests(0)


def test_whole_weights_are_in_the_format_that_is_computed_in():
    half = served("llama-2-7b", "A100-80GB")
    assert (half.weights, half.kv, half.dtype) == ("bf16", "bf16", "bf16")
    whole = half.changed(precision="fp32")
    assert (whole.weights, whole.kv, whole.dtype) == ("fp32", "fp32", "fp32")
    assert kv_capacity(whole).weight_bytes == 2 * kv_capacity(half).weight_bytes
    assert half.changed(weights="int8").changed(precision="fp32").weights == "int8"
    with pytest.raises(
        ValueError, match="weights = 'fp16' and precision = 'fsdp-bf16', which computes in bf16"
    ):
        half.changed(weights="fp16")


def test_changed_reaches_the_run_and_the_layout():
    base = served("llama-2-7b", "2xA100-80GB", 2)
    assert base.changed(micro_batch=4, weights="int8").run.global_batch == 4
    assert base.changed(tensor=1, replicate=2).tensor == 1
    with pytest.raises(TypeError):
        base.changed(colour="blue")
