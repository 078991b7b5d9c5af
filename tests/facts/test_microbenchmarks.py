"""Tables of kernels timed alone: complete, plausible, each row with its source."""

import pytest

from workshop.facts import microbenchmarks
from workshop.facts.catalogue import device
from workshop.facts.microbenchmarks import (
    TABLES,
    attention,
    dispatch,
    gemm,
    grouped_gemm,
    host,
    in_node,
    rows,
    windowed_attention,
)


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_its_source_and_no_row_stands_twice(name):
    table = rows(name)
    assert table
    assert all(row["source"].startswith(("github ", "PyPI ", "arXiv ")) for row in table)
    keys = [tuple(v for k, v in row.items() if k not in ("seconds", "tflops", "source")) for row in table]
    assert len(set(keys)) == len(keys)


def test_an_unknown_table_gets_the_known_ones():
    with pytest.raises(ValueError, match="grouped_gemm"):
        rows("gemms")


def test_nothing_was_timed_faster_than_its_device():
    for row in gemm():
        flops = 2.0 * row.rows * row.cols * row.depth
        assert flops / row.seconds < device(row.device).peak(row.dtype), row
    for row in attention():
        assert row.tflops * 1e12 < device(row.device).peak(row.dtype), row
    for row in windowed_attention():
        assert row.tflops * 1e12 < device(row.device).peak(row.dtype), row
    for row in grouped_gemm():
        routed = row.tokens * row.experts_per_token / row.expert
        flops = 6.0 * routed * row.hidden_size * row.expert_ffn_hidden_size
        assert flops / row.seconds < device(row.device).peak(row.dtype), row


def test_no_dispatch_outran_its_link():
    """Of a token's eight copies seven in eight leave at most; NVLink 4 and 5 carry 450 and 900 GB/s one way."""
    links = {"H100": 450e9, "GB200": 900e9}
    for row in dispatch():
        distinct = row.ranks * (1 - (1 - 1 / row.ranks) ** row.experts_per_token)
        copies = row.experts_per_token if row.dispatcher == "alltoall" else distinct
        sent = 2 * row.tokens * row.hidden_size * copies * (row.ranks - 1) / row.ranks
        assert sent / row.seconds < links[row.device], row
    assert {row.direction for row in dispatch()} == {"dispatch", "combine"}


def test_grace_is_slower_at_one_linear_map_than_steps_show():
    """Why these rows decide nothing: a GB200's launch in steps is near an A100's (`rates.toml`)."""
    seconds = {row.device: row.seconds / row.kernels for row in host()}
    assert seconds["GB200"] / seconds["H100"] == pytest.approx(2.75, rel=0.01)
    assert seconds["GH200-96GB"] > 2 * seconds["H100"]
    assert seconds["H100"] < seconds["A100-80GB"] < seconds["GB200"]


def test_collectives_have_every_power_of_two_for_every_group():
    for device_name, library in {(row.device, row.library) for row in in_node()}:
        mine = [row for row in in_node() if (row.device, row.library) == (device_name, library)]
        sizes = {row.num_bytes for row in mine}
        assert all(size & (size - 1) == 0 for size in sizes)
        kinds = {(row.collective, row.ranks) for row in mine}
        assert len(mine) == len(kinds) * len(sizes)


def test_what_is_not_a_number_is_refused(monkeypatch):
    bad = [{"device": "H100", "dtype": "bf16", "rows": "many", "cols": "1", "depth": "1", "seconds": "1"}]
    monkeypatch.setattr(microbenchmarks, "rows", lambda name: bad)
    with pytest.raises(ValueError, match="many"):
        gemm.__wrapped__()
