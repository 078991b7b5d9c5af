"""The list of saved tensors sums to the published equations."""

import numpy as np
import pytest

from workshop.facts import catalogue
from workshop.facts.implementation import implementation
from workshop.facts.layout import Layout
from workshop.facts.precision import precision
from workshop.facts.run import Run
from workshop.predict.case import Policy
from workshop.predict.layouts import Layouts
from workshop.predict.memory import predict_memory
from workshop.predict.memory.activations import in_flight, kept, per_token, total
from workshop.predict.memory.saved import layer_saved

BF16 = precision("megatron-bf16")
SEQ, BATCH = 2048, 1


def layer_bytes(model, policy=None, how=None, **sizes):
    how = how or implementation("megatron", attention="unfused", dropout=True)
    place = Layouts.of_columns(seq_len=SEQ, micro_batch=BATCH, **sizes)
    return float(per_token(model, "dense", policy or Policy(), how, BF16).on(place)[0])


@pytest.mark.parametrize("name", ["megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t"])
@pytest.mark.parametrize("t", [1, 8])
def test_korthikanti_equations(name, t):
    """Equations 1, 2, 4 and 6 of arXiv 2205.05198, but for the norms' statistics (4 fp32 numbers a token)."""
    model = catalogue.model(name)
    h, ratio = model.hidden_size, 5 * model.num_heads * SEQ / model.hidden_size
    unit, small = SEQ * BATCH * h, SEQ * BATCH * 16
    assert layer_bytes(model, tensor=t) - small == pytest.approx(unit * (10 + 24 / t + ratio / t))
    with_sequence = layer_bytes(model, tensor=t, sequence_parallel=True)
    assert with_sequence - small / t == pytest.approx(unit / t * (34 + ratio))
    selective = layer_bytes(model, Policy("selective"), tensor=t, sequence_parallel=True)
    assert selective - small / t == pytest.approx(unit / t * 34)
    assert layer_bytes(model, Policy("full"), tensor=t) == pytest.approx(2 * unit)


def test_flash_attention_keeps_nothing_quadratic():
    model = catalogue.model("llama-3.1-8b").resized(dropout=True)
    how = implementation("megatron", attention="flash")
    assert total(layer_saved(model, "dense", how, BF16)).score == 0
    unfused = total(layer_saved(model, "dense", implementation("megatron", attention="unfused"), BF16))
    assert unfused.score == 32 * (2 + 2 + 1)


def test_grouped_queries_keep_fewer_keys():
    grouped = catalogue.model("llama-3.1-8b")
    full = grouped.resized(num_kv_heads=32)
    how = implementation("torch")
    less = (
        total(layer_saved(full, "dense", how, BF16)).tensor
        - total(layer_saved(grouped, "dense", how, BF16)).tensor
    )
    assert less == 2 * 24 * 128 * 2  # keys and values of 24 heads, 128 wide, two bytes


def test_experts_count_tokens_as_often_as_they_are_sent():
    model = catalogue.model("mixtral-8x7b")
    saved = {t.name: t for t in layer_saved(model, "moe", implementation("megatron"), BF16)}
    assert saved["dispatched tokens"].width == 2 * model.hidden_size
    assert saved["mlp after its nonlinearity"].width == 2 * model.moe_ffn_hidden_size


def test_selective_by_operation_keeps_every_second_matmul():
    model = catalogue.model("llama-3.1-8b")
    names = [
        t.name
        for t in kept(model, "dense", Policy("selective", ("ops",)), implementation("torchtitan"), BF16)
    ]
    assert names == ["layer's input", "q", "v", "gate", "down", "attention output", "row statistics"]


def test_frozen_weights_need_no_inputs():
    model, how = catalogue.model("llama-2-7b"), implementation("torch")
    everything = total(kept(model, "dense", Policy(), how, BF16))
    frozen = total(kept(model, "dense", Policy(trained=("q", "v"), adapter="adapter"), how, BF16))
    norms, product = 2 * 2 * 4096, 2 * 11008
    assert everything.sequence - frozen.sequence == norms
    assert everything.tensor - frozen.tensor == product
    # bitsandbytes keeps a 4-bit map's input whether it is needed or not.
    packed = total(
        kept(model, "dense", Policy(trained=("q", "v"), adapter="adapter", quantized=True), how, BF16)
    )
    assert packed == everything


def flights(schedule, **sizes):
    return in_flight(Layouts.of_columns(stage=np.arange(4), pipeline=4, **sizes), schedule).tolist()


def test_micro_batches_in_flight():
    assert flights("1f1b", accumulation=16) == [4, 3, 2, 1]
    assert flights("1f1b", accumulation=2) == [2, 2, 2, 1]
    assert np.broadcast_to(flights("gpipe", accumulation=16), 4).tolist() == [16] * 4
    # arXiv 2104.04473: 2 (p - i - 1) + (v - 1) p + 1 chunks
    assert flights("interleaved", virtual_stages=3, accumulation=16) == [15, 13, 11, 9]
    assert flights("interleaved", virtual_stages=3, accumulation=2) == [6, 6, 6, 6]
    assert flights("zb-h2", accumulation=16) == [7, 5, 3, 1]


FIGURE_7 = {"none": 100.0, "seq": 66.84, "sel": 49.42, "seqsel": 16.18, "full": 7.64}


@pytest.mark.parametrize(("mode", "percent"), FIGURE_7.items())
def test_korthikanti_figure_7(mode, percent):
    """Activations of the 22B model relative to plain tensor parallelism of 8, as the paper's figure 7 has
    them.
    """
    model = catalogue.model("megatron-22b")
    policy = Policy("full" if mode == "full" else "selective" if "sel" in mode else "none")
    found = layer_bytes(model, policy, tensor=8, sequence_parallel="seq" in mode)
    assert 100 * found / layer_bytes(model, tensor=8) == pytest.approx(percent, abs=0.15)


@pytest.mark.parametrize("cut", [{"shard": 8, "zero": 3}, {"pipeline": 8}])
def test_no_more_layers_are_run_again_than_a_rank_has(cut):
    def allocated(every):
        layout = Layout(**cut, recompute="full", recompute_every=every)
        return int(predict_memory(Run("llama-3-8b", "8xH100", layout, 4, 8192)).allocated[0])

    held = 32 // cut.get("pipeline", 1)
    assert allocated(held) == allocated(2 * held) == allocated(999)
    assert allocated(held) != allocated(held // 2)
