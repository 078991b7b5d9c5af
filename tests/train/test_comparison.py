"""`compare` says whether what was measured lies in the interval of what was predicted."""

from workshop import Layout, Run, compare, predict_memory

RUN = Run("llama-3-8b", "8xH100", Layout(shard=8, zero=3))


def test_the_verdict_names_the_interval():
    expected = predict_memory(RUN)
    low, high = expected.allocated_interval
    near = compare(expected, {"weights": float(expected.peak_bytes)})
    assert near.inside is True
    assert near.agrees
    assert "they agree; inside the interval of " in near.verdict
    for far in (0.9 * low, 1.1 * high):
        found = compare(expected, {"weights": far})
        assert found.inside is False
        assert "outside the interval of " in repr(found)


def test_what_was_not_predicted_has_no_interval():
    found = compare({"weights": 100.0}, {"weights": 102.0})
    assert found.inside is None
    assert "interval" not in found.verdict
