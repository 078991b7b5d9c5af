"""Bytes of a weight by format, of published models, and the bound that bandwidth sets."""

import pytest

from workshop.facts.catalogue import device, model
from workshop.predict.weight_formats import (
    FORMATS,
    bytes_read_per_token,
    most_tokens_per_second,
    weight_bytes,
    weight_format,
)


def test_bytes_of_a_weight():
    assert FORMATS["int4"].bytes_per_weight(576) == 0.5 + 2 / 64
    assert FORMATS["int8"].bytes_per_weight(576) == 1 + 2 / 576
    assert FORMATS["int3"].bytes_per_weight(576) == 0.375 + 2 / 64
    assert FORMATS["int4-asymmetric"].bytes_per_weight(576) == 0.5 + 2.5 / 64
    # QLoRA (arXiv 2305.14314, section 3): double quantization takes 0.5 bits a weight down to 0.127.
    double = FORMATS["nf4-double"].bytes_per_weight(4096) * 8 - 4
    assert double == pytest.approx(0.127, abs=0.0005)
    assert FORMATS["nf4"].bytes_per_weight(4096) * 8 - 4 == 0.5


def test_sixteen_bits_are_two_bytes_a_parameter():
    for name in ("llama-7b", "smollm2-135m", "llama-3.1-405b"):
        assert weight_bytes(model(name), "bf16") == 2 * model(name).num_params


def test_the_rest_stays_wide():
    smol = model("smollm2-135m")
    linears = 30 * 3 * 576 * 1536 + 30 * (2 * 576 * 576 + 2 * 576 * 192)
    assert weight_bytes(smol, "int4") == pytest.approx(
        linears * (0.5 + 2 / 64) + 2 * (smol.num_params - linears)
    )


def test_speed_is_bandwidth_over_bytes():
    llama = model("llama-7b")
    table = 2 * llama.vocab_size * llama.hidden_size
    assert bytes_read_per_token(llama, "bf16") == 2 * llama.num_params - table
    h100 = device("H100")
    assert most_tokens_per_second(llama, "bf16", h100) == h100.memory_bandwidth / (
        2 * llama.num_params - table
    )
    smol = model("smollm2-135m")  # its table is its head, so it is read
    assert bytes_read_per_token(smol, "bf16") == 2 * smol.num_params


def test_errors_name_the_way_out():
    with pytest.raises(ValueError, match="Did you mean|int4"):
        weight_format("int5")
    with pytest.raises(ValueError, match="576 inputs do not divide into groups of 128"):
        weight_bytes(model("smollm2-135m"), "int4-128")
    with pytest.raises(ValueError, match="dense models"):
        bytes_read_per_token(model("mixtral-8x7b"), "int4")
