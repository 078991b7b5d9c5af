"""Regimes left out whole: what is kept is what the command finds, and nothing of a regime is seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import predict_report
from workshop.predict.time import step
from workshop.predict.time.rates import rates_of
from workshop.published.fit import SETS, USUAL, device_of
from workshop.published.left_out import COMPARED, LeftOut, as_csv, read, time_observations
from workshop.published.left_out_report import by_regime, errors, page, targets
from workshop.published.predicted import memory_value, predict_times, predicted_memory
from workshop.published.record import SECONDS, TOKENS, Observation
from workshop.published.refit import Refits, inherited, refitted_share, with_share
from workshop.published.regimes import AXES, source, unique_weights
from workshop.published.residuals import coverage, sample
from workshop.published.tables import read_folder

ENDLESS = (np.array(np.inf), np.array(np.inf))  # passes behind which any send hides
TABLES = Path(__file__).parents[2] / "data" / "published"


@pytest.fixture(scope="module")
def records():
    return read_folder(TABLES)[0]


@pytest.fixture(scope="module")
def kept(records):
    return read(records)


@pytest.fixture(scope="module")
def written(records, kept):
    return page(kept, records)


def test_intervals_are_those_of_the_command(records, kept):
    assert predict_report.intervals(kept, records) == predict_report.INTERVALS.read_text("utf-8"), (
        "make predict-report"
    )


def test_the_page_is_that_of_the_command(written):
    assert written == predict_report.PAGE.read_text("utf-8"), "make predict-report"


def test_what_is_kept_was_predicted_by_this_package(records, kept):
    """In sample, every time and a part of memory: a change of the model must be followed by the command."""
    times = [row for row in kept if row.is_time]
    now = predict_times([row.one for row in times])
    assert np.array([row.predicted["in_sample"] for row in times]) == pytest.approx(now, rel=1e-5)
    memories = [row for row in kept if not row.is_time][::20]
    for row in memories:
        now = memory_value(row.one, predicted_memory(row.one.record))
        assert row.predicted["in_sample"] == pytest.approx(now, rel=1e-5)


def test_a_regime_fitted_again_is_what_is_kept(kept):
    """One device left out, as `make predict-report` does it for every regime."""
    times = [row for row in kept if row.is_time]
    out = [row for row in times if AXES["device"](row.one.record) == "GB200"]
    found = Refits([row.one for row in times]).without({id(row.one) for row in out})
    again = predict_times([row.one for row in out], found)
    assert np.array([row.predicted["device"] for row in out]) == pytest.approx(again, rel=5e-3)


def test_a_device_without_rows_takes_no_constant_of_its_own(records):
    times = time_observations(records)
    found = Refits(times).without({id(one) for one in times if device_of(one) != "V100-32GB"})
    assert found.rates["H100"].sustained == USUAL["sustained"]
    assert found.rates["GB200"].host_seconds == found.rates["H100"].host_seconds
    assert found.rates["GB200"].host_seconds != rates_of("GB200").host_seconds
    assert found.rates["GB200"].link == rates_of("GB200").link  # what nobody fitted stays


def test_a_refit_does_not_see_what_is_left_out(records):
    """Rows of the regime may be anything: the constants do not move."""
    times = [one for one in time_observations(records) if device_of(one) == "GB200"]
    some = [x for x in times if AXES["precision"](x.record) == "bf16"]
    found, first = (
        Refits(rows).without(gone)
        for rows, gone in (
            (times, {id(x) for x in times if AXES["precision"](x.record) != "bf16"}),
            (some, set()),
        )
    )
    assert found.rates["GB200"] == first.rates["GB200"]
    assert first.rates["GB200"].host_seconds != rates_of("GB200").host_seconds


def test_a_device_without_rows_has_what_its_relative_has():
    h100 = rates_of("H100").with_values(host_seconds=1e-5)
    found = inherited("GB200", {"H100": h100})
    assert found.host_seconds == 1e-5
    assert found.multiprocessors == rates_of("GB200").multiprocessors
    assert inherited("GB300", {"H100": h100, "GB200": found}).host_seconds == 1e-5
    assert {name for _, names in SETS.values() for name in names} >= {"sustained", "attention"}


def test_the_idle_share_is_the_packages_own_where_it_is_put_back(records):
    from workshop.predict.memory.allocator import FRAGMENTATION

    some = [r for r in records if {"memory_reserved", "memory_device"} & set(r.measured)][::6]
    rows = [(one, predicted_memory(one.record)) for r in some for one in r.observations(COMPARED)]
    for one, found in rows:
        assert with_share(one, found, FRAGMENTATION) == pytest.approx(memory_value(one, found))
    assert 0 <= refitted_share(rows) <= 0.5
    assert refitted_share([]) == FRAGMENTATION


def test_repeated_configurations_count_once(records):
    one = records[0].observations()[0]
    weights = unique_weights([one, one, *records[1].observations()[:1]])
    assert weights.tolist() == [0.5, 0.5, 1.0]


def test_tables_of_one_publisher_are_one_source(records):
    assert {source(r) for r in records if r.table.startswith("vtrain")} == {"vtrain"}
    assert len({source(r) for r in records}) < len({r.table for r in records})


def made(quantity, measured, predicted):
    record = type("Record", (), {"measured": {quantity: measured}})()
    return LeftOut(Observation(record, quantity), {"source": predicted})


def test_a_residual_is_of_seconds_whatever_was_reported():
    assert made(SECONDS, 2.0, 1.0).residual("source") == pytest.approx(np.log(2))
    assert made(TOKENS, 1.0, 2.0).residual("source") == pytest.approx(np.log(2))


def test_errors_are_signed_and_by_regime(kept):
    times = [row for row in kept if row.is_time]
    found = by_regime(times, "pipeline")
    assert set(found) == {"with stages", "without", "all"}
    assert found["all"].rows == found["with stages"].rows + found["without"].rows == len(times)
    assert found["all"] == errors(times, "pipeline")
    assert abs(found["all"].left_out[1]) <= found["all"].left_out[0]


@pytest.mark.parametrize("kind", ["time", "memory"])
def test_of_a_source_that_was_left_out_eight_in_ten_rows_lie_inside(kept, kind):
    """Each source counting the same; the page has them one by one."""
    assert 0.7 <= coverage(sample(kept, kind))["mean of sources"] <= 0.9


def test_every_target_is_on_the_page(records, kept, written):
    for target in targets(kept, records):
        assert f"{target.words} | {target.reached:.1%} | {'met' if target.met else '**missed**'}" in written


def test_what_was_asked_for_is_met(records, kept):
    assert [target.words for target in targets(kept, records) if not target.met] == []


def of_source(records, name):
    return [one for one in time_observations(records) if source(one.record) == name]


def error_with(ones, **software):
    """The mean error of a source's configurations, had their stacks been so."""
    changed = [
        replace(one, record=replace(one.record, software=replace(one.record.software, **software)))
        for one in ones
    ]
    wrong = np.abs(predict_times(changed) / [one.measured for one in ones] - 1)
    return np.average(wrong, weights=unique_weights(ones))


def test_what_the_page_says_of_hosts(records):
    """Either half of what was changed makes both sources of experts worse: to a percent, as it is written."""
    nvidia, together = (
        of_source(records, name)
        for name in ("nvidia_megatron_bridge_performance", "together_dgxc_benchmarking")
    )
    scaled_by_the_second_step = {"expert_kernels": 32, "kernels_per_expert": 5.2}
    assert round(100 * error_with(together, host_in_8_bits=1.0)) == 13
    assert round(100 * error_with(together, **scaled_by_the_second_step)) == 12
    assert round(100 * error_with(nvidia, host_in_8_bits=1.0)) == 11
    assert round(100 * error_with(nvidia, **scaled_by_the_second_step)) == 11


def test_what_the_page_says_of_sends(records, monkeypatch):
    """Together's would be a point farther off; no row has a send that takes longer than what it hides behind."""
    together = of_source(records, "together_dgxc_benchmarking")
    farther = error_with(together, passes_rate=0.0) - error_with(together)
    assert 0.005 < farther < 0.015
    times = time_observations(records)
    before = predict_times(times)
    waited = step.pipeline_seconds
    monkeypatch.setattr(
        step,
        "pipeline_seconds",
        lambda setting, layouts, chunks, _: waited(setting, layouts, chunks, ENDLESS),
    )
    assert predict_times(times) == pytest.approx(before, rel=1e-12)


def test_a_file_of_other_rows_is_refused(records, kept, tmp_path):
    lines = as_csv(kept).splitlines(keepends=True)
    for name, text in {"fewer": lines[:-1], "more": [*lines, lines[1].replace(",", "x,", 1)]}.items():
        path = tmp_path / name
        path.write_text("".join(text))
        with pytest.raises(ValueError, match="--left-out --refit"):
            read(records, path)
