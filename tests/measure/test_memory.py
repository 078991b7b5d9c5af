"""Allocations become a report: with real events, with invented ones, and with CUDA's format."""

import torch

from workshop.measure import counter
from workshop.measure.memory import Allocation, MemoryTrace, build_report, cuda_events


def test_a_real_trace_finds_the_peak_to_the_byte():
    counter.enable()
    trace = MemoryTrace("cpu")
    trace.start()
    base = counter.live_bytes()
    kept = torch.empty(1_000_000, dtype=torch.uint8)
    for size in (3_000_000, 9_000_001, 2_000_000):
        torch.empty(size, dtype=torch.uint8)
    report = trace.stop()
    assert report.peak_bytes == base + 10_000_001
    assert sum(report.peak_parts.values()) == report.peak_bytes
    del kept


def test_labels_go_to_what_lives_at_the_address_at_that_time():
    events = [Allocation(1, 0xA, 100, 100), Allocation(3, 0xA, -100, 0), Allocation(5, 0xA, 70, 70)]
    report = build_report(0, {}, events, [(6, "label", (0xA, "gradients", 70))])
    assert report.peak_parts == {"temporaries": 100}
    assert report.timeline.part_bytes["gradients"][-1] == 70


def test_what_was_there_before_is_known_or_other():
    report = build_report(500, {0xB: (200, "weights")}, [Allocation(1, 0xC, 50, 550)], [])
    assert report.peak_parts == {"weights": 200, "other": 300, "temporaries": 50}


def test_what_is_labelled_later_but_was_never_allocated_was_there_before():
    report = build_report(500, {}, [Allocation(5, 0xC, 50, 550)], [(3, "label", (0xB, "weights", 200))])
    assert report.peak_parts == {"weights": 200, "other": 300, "temporaries": 50}


def test_bytes_of_other_threads_are_communication():
    events = [Allocation(1, 0xA, 10, 10), Allocation(2, 0xB, 5, 115), Allocation(3, 0xB, -5, 10)]
    report = build_report(0, {}, events, [])
    assert report.peak_bytes == 115
    assert report.peak_parts["communication"] == 100


def test_a_tensor_freed_in_another_thread_is_found_by_its_size():
    events = [
        Allocation(1, 0xA, 10, 10),
        Allocation(2, 0xB, 77, 87),
        Allocation(3, 0xC, 1, 11),
        Allocation(4, 0xD, 90, 101),
    ]
    report = build_report(0, {}, events, [])
    assert report.peak_bytes == 101
    assert report.peak_parts == {"temporaries": 101}
    assert min(report.peak_parts.values()) >= 0


def test_what_another_thread_took_and_this_one_frees_at_once_was_no_ones():
    events = [Allocation(1, 0xA, 10, 40), Allocation(2, 0xB, -77, 40), Allocation(3, 0xC, 5, 45)]
    report = build_report(30, {}, events, [])
    assert report.peak_parts == {"other": 30, "temporaries": 15}


def test_an_address_used_again_was_freed_in_between():
    events = [Allocation(1, 0xA, 10, 10), Allocation(2, 0xA, 20, 20)]
    assert build_report(0, {}, events, []).peak_bytes == 20


def test_cuda_history_has_the_same_events():
    snapshot = {
        "device_traces": [
            [
                {"action": "segment_alloc", "addr": 1, "size": 2 << 20, "time_us": 1},
                {"action": "alloc", "addr": 16, "size": 512, "time_us": 2},
                {"action": "alloc", "addr": 528, "size": 1024, "time_us": 3},
                {"action": "free_requested", "addr": 16, "size": 512, "time_us": 4},
                {"action": "free_completed", "addr": 16, "size": 512, "time_us": 5},
            ]
        ]
    }
    report = build_report(0, {}, cuda_events(snapshot, 0), [])
    assert report.peak_bytes == 1536
    assert report.timeline.total_bytes[-1] == 1024
